"""Common parts of all pictures: figures without global state, and atomic writing of files."""

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
    """Return the lower-case suffix of a picture file; raise InputError if the format is not supported."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"{path}: a picture must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {suffix!r}")
    return suffix


def check_picture(path: str | Path) -> None:
    """Refuse a picture file that cannot be written, before the work begins."""
    check_suffix(path)
    if not Path(path).parent.is_dir():
        raise InputError(f"{path}: there is no folder {Path(path).parent}")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure; width and height are in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib: pip install flowccl[plot]") from None
    return Figure(figsize=(width, height), facecolor="white")


@contextmanager
def missing_glyphs_ignored() -> Iterator[None]:
    """Suppress warnings about characters that the font lacks; they are drawn as boxes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def save_figure(figure: Any, path: str | Path, dots_per_inch: int = 130) -> None:
    """Write a figure to a PNG, SVG or PDF file, chosen by its suffix."""
    from matplotlib import rc_context

    suffix = check_suffix(path)
    no_date: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    data = BytesIO()
    with rc_context({"svg.hashsalt": "flowccl"}), missing_glyphs_ignored():
        figure.savefig(
            data,
            format=suffix[1:],
            dpi=dots_per_inch,
            metadata=no_date.get(suffix),
            bbox_inches="tight",
            pad_inches=0.15,
        )
    write_bytes(path, data.getvalue())
