"""What all pictures share: a figure without global state, and a file that is written whole or not at all."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from flowccl.errors import InputError
from flowccl.files import write_bytes

SUFFIXES = (".png", ".svg", ".pdf")

INK = "#222222"
SOFT = "#777777"


def check_suffix(path: str | Path) -> str:
    """The suffix of a picture's name; InputError where it is none that can be drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: a picture must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {suffix!r}")
    return suffix


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib: pip install flowccl[plot]") from None
    return Figure(figsize=(width, height), facecolor="white")


@contextmanager
def missing_glyphs_ignored() -> Iterator[None]:
    """No warning where a name is in a script that the font lacks; it is drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def save_figure(figure: Any, path: str | Path, dots_per_inch: int = 130) -> None:
    """Draw a figure into a file: PNG, SVG or PDF by its suffix."""
    from matplotlib import rc_context

    suffix = check_suffix(path)
    same_each_time: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    data = BytesIO()
    with rc_context({"svg.hashsalt": "flowccl"}), missing_glyphs_ignored():
        figure.savefig(
            data,
            format=suffix[1:],
            dpi=dots_per_inch,
            metadata=same_each_time.get(suffix),
            bbox_inches="tight",
            pad_inches=0.15,
        )
    write_bytes(path, data.getvalue())
