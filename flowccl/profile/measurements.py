"""Raw measurements: every probe with the times of its links, stored in files that survive a crash.

While measuring, rank 0 appends one line per round to a file `*.part`; at the end the lines become one JSON file. Both
files can be read again, so a new fit needs no new measurement.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import FileError
from flowccl.files import parse_json, read_bytes, write_json
from flowccl.profile.probes import Ends, PlanOptions, Probe, Round, options_from_json

FORMAT = "flowccl-measurements"
VERSION = 1
_MOST_BYTES = 1_000_000_000
_SLACK_S = 0.002  # rank 0 may see the beginning of a round later than other ranks by at most this

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MeasuredProbe:
    """One probe and its times `seconds[repeat, link]`, measured by the clock of the link's sender.

    `wall_s` is the duration of the round with all its repeats, measured by the clock of rank 0.
    """

    probe: Probe
    seconds: Floats
    wall_s: float

    @property
    def plausible(self) -> NDArray[np.bool_]:
        """Which times are positive and not longer than the whole round; others mean that a clock jumped."""
        longest = self.wall_s + _SLACK_S if self.wall_s > 0 else math.inf
        return np.isfinite(self.seconds) & (self.seconds > 0) & (self.seconds <= longest)


@dataclass(frozen=True, eq=False)
class Measurements:
    """All measured probes, the backend (`on`), the host of each rank, and the number of planned `rounds`."""

    on: str
    hosts: tuple[str, ...]
    options: PlanOptions
    rounds: int
    probes: tuple[MeasuredProbe, ...]
    rounds_done: int

    @property
    def complete(self) -> bool:
        """Whether all planned rounds were measured."""
        return self.rounds_done >= self.rounds


def median_times(one: MeasuredProbe) -> Floats | None:
    """Median time of each link; None if a clock jumped in every repeat."""
    plausible = one.plausible.all(axis=1)
    return np.median(one.seconds[plausible], axis=0) if plausible.any() else None


def clock_jumps(measurements: Measurements) -> list[str]:
    """Describe the times that are not plausible."""
    found = []
    for measured in measurements.probes:
        for repeat, place in np.argwhere(~measured.plausible).tolist():
            link, seconds = measured.probe.links[place], measured.seconds[repeat, place]
            words = f"{link_name(link)}: {seconds:g} s in a round of {measured.wall_s:g} s"
            found.append(f"{words}: the clock of rank {link[0]} jumped")
    return found


def link_name(link: Ends) -> str:
    """Name of a link in messages."""
    return f"gpu{link[0]} -> gpu{link[1]}"


# -- files ----------------------------------------------------------------------------------------------------------


def measurements_path(out: str | Path) -> Path:
    """Path of the measurements of a machine file: machine.json -> machine.measurements.json."""
    path = Path(out)
    ending = ".json.gz" if path.name.endswith(".json.gz") else ".json"
    return path.with_name(path.name.removesuffix(ending) + ".measurements" + ending)


def head_to_json(on: str, hosts: Sequence[str], options: PlanOptions, rounds: int) -> dict[str, Any]:
    """The header of a measurements file, known before the first round."""
    header = {"on": on, "hosts": list(hosts), "options": asdict(options), "rounds": rounds}
    return {"format": FORMAT, "version": VERSION} | header


def round_to_json(probes: Round, seconds: Sequence[Floats], wall_s: float) -> dict[str, Any]:
    """One round as a JSON object."""
    return {"wall_s": wall_s, "probes": [_probe_to_json(p, s) for p, s in zip(probes, seconds, strict=True)]}


def _probe_to_json(probe: Probe, seconds: Floats) -> dict[str, Any]:
    named = {name: getattr(probe, name) for name in ("name", "links", "chunk_bytes", "chunks", "at_once")}
    return named | ({"covers": probe.covers} if probe.covers else {}) | {"seconds": seconds.tolist()}


def add_line(path: Path, value: dict[str, Any]) -> None:
    """Append one JSON line to a file; the file is closed before the next round begins."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(value) + "\n")


def finish_lines(part: Path, path: Path) -> Measurements:
    """Convert a `*.part` file to one JSON file, delete the `*.part` file, and return the measurements."""
    head, rounds = _read_lines(part)
    write_json(path, head | {"measured": rounds})
    part.unlink()
    return _from_json(head | {"measured": rounds}, str(path))


def load_measurements(path: str | Path) -> Measurements:
    """Load measurements from a JSON file, or from the `*.part` file of an interrupted run."""
    if str(path).endswith(".part"):
        head, rounds = _read_lines(Path(path))
        return _from_json(head | {"measured": rounds}, str(path))
    return _from_json(parse_json(read_bytes(Path(path), _MOST_BYTES), str(path)), str(path))


def count_lines(part: Path) -> int:
    """Number of rounds in a `*.part` file."""
    try:
        return max(part.read_bytes().count(b"\n") - 1, 0)
    except FileNotFoundError:
        return 0


def planned_rounds(part: Path) -> int:
    """Number of planned rounds, from the header of a `*.part` file."""
    with part.open("rb") as file:
        return int(parse_json(file.readline(), str(part))["rounds"])


def _read_lines(part: Path) -> tuple[dict[str, Any], list[Any]]:
    lines = read_bytes(part, _MOST_BYTES).split(b"\n")[:-1]  # text after the last newline is an incomplete line
    if not lines:
        raise FileError(f"{part}: the file has no lines; nothing was measured")
    values = [parse_json(line, f"{part}: line {number}") for number, line in enumerate(lines, 1)]
    if not isinstance(values[0], dict):
        raise FileError(f"{part}: line 1 must be an object")
    return values[0], values[1:]


def _from_json(value: Any, name: str) -> Measurements:
    if not isinstance(value, dict) or value.get("format") != FORMAT or value.get("version") != VERSION:
        raise FileError(f'{name}: not a measurements file ("format": "{FORMAT}", "version": {VERSION})')
    try:
        options = options_from_json(value["options"])
        hosts = tuple(str(host) for host in value["hosts"])
        probes = tuple(
            _probe_from_json(entry, float(turn["wall_s"]), len(hosts))
            for turn in value["measured"]
            for entry in turn["probes"]
        )
        return Measurements(
            str(value["on"]), hosts, options, int(value["rounds"]), probes, rounds_done=len(value["measured"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FileError(f"{name}: invalid measurements: {type(error).__name__} {error}") from None


def _probe_from_json(entry: dict[str, Any], wall_s: float, ranks: int) -> MeasuredProbe:
    links, covers = (tuple((int(a), int(b)) for a, b in entry.get(key, ())) for key in ("links", "covers"))
    for a, b in links + covers:
        if not (0 <= a < ranks and 0 <= b < ranks and a != b):
            raise ValueError(f"link {a} -> {b} does not connect two of {ranks} ranks")
    seconds = np.asarray(entry["seconds"], dtype=np.float64)
    if not links or seconds.ndim != 2 or seconds.shape[1] != len(links) or len(entry["chunk_bytes"]) != len(links):
        raise ValueError(f"probe {entry['name']!r} needs one time and one size for each of its links")
    sizes = tuple(int(size) for size in entry["chunk_bytes"])
    probe = Probe(str(entry["name"]), links, sizes, int(entry["chunks"]), bool(entry["at_once"]), len(seconds), covers)
    if min(sizes) < 1 or probe.chunks < 1:
        raise ValueError(f"probe {probe.name!r} must send at least 1 chunk of 1 byte")
    return MeasuredProbe(probe, seconds, wall_s)
