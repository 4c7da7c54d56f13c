"""What each tuned number is worth: half of it and twice of it, on a fixed sample of rows, with counted steps.

A number that changes nothing on all rows is hardly needed: give the search a rule without it. Numbers that act only
where there is a time limit, numbers that are read when a module is imported, and those in compiled loops change nothing
here.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

from benchmarks.clusters import forget
from benchmarks.report import store
from benchmarks.tuned_numbers import FOLDERS, TunedNumber, tuned_numbers
from flowccl.compilation import warm_up
from flowccl.errors import FlowcclError
from flowccl.methods.registry import methods_where
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.units import parse_bytes

ROWS = (  # machine, collective, size, runtime: small ones of many kinds, so that a search is quick
    ("mesh:3x3", "allgather", "1MB", "ideal"),
    ("torus:3x4", "allreduce", "64KB", "ideal"),
    ("ndv2:2", "alltoall", "1MB", "ideal"),
    ("rail:2x4", "reduce_scatter", "4MB", "ideal"),
    ("dgx1", "allgather", "64KB", "mscclpp"),
    ("ring:8", "broadcast", "16MB", "ideal"),
    ("dgx1", "allreduce", "1KB", "ideal"),
    ("dragonfly:3:2:1", "allgather", "256KB", "ideal"),
    ("hypercube:3", "alltoall", "64MB", "ideal"),
    ("dgx_a100:2", "allreduce", "16MB", "mscclpp"),
)
_LINE = "{:<62} {:>24} {:>6} {:>9} {:>9}  {}"
_SMS = 108  # of a GPU whose model the machine does not name
Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Effect:
    """What another value of a number changes: relative completion times, less 1, by row."""

    number: str
    value: str
    change: dict[str, float]

    def __str__(self) -> str:
        least, most = min(self.change.values(), default=0.0), max(self.change.values(), default=0.0)
        where = max(self.change, key=lambda row: abs(self.change[row]), default="")
        return _LINE.format(self.number, self.value, len(self.change), f"{least:+.2%}", f"{most:+.2%}", where)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each number and value, and the numbers that change nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sensitivity", description=__doc__)
    parser.add_argument("--rows", type=int, default=len(ROWS), help=f"rows, at most {len(ROWS)} (default: all)")
    parser.add_argument("--steps", type=int, default=40, help="steps of each search (default: 40)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="numbers whose names match, as 'auto/*'")
    parser.add_argument("--list", action="store_true", help="only print the numbers")
    parser.add_argument("--json", metavar="FILE", help="store all changes")
    options = parser.parse_args(arguments)
    numbers = [number for number in tuned_numbers() if fnmatch(str(number), options.only)]
    if options.list:
        print("\n".join(f"{number!s:<62} {number.value}" for number in numbers))
        return 0
    warm_up(methods_where(lambda info: info.in_auto is not None))
    rows = ROWS[: options.rows]
    base = finish_times(rows, options.steps)
    measured = [number for number in numbers if number.path.startswith(FOLDERS) and not number.is_compiled]
    print(_LINE.format("number", "value", "rows", "earlier", "later", "largest change on"))
    effects: list[Effect] = []
    for number in measured:
        for by in (0.5, 2.0):
            effects.append(effect(number, by, rows, options.steps, base))
            print(effects[-1], flush=True)
    idle = [str(number) for number in measured if not any(e.change for e in effects if e.number == str(number))]
    print(f"\n{len(idle)} of {len(measured)} numbers change nothing on {len(base)} rows:", *idle, sep="\n  ")
    store(options.json, vars(options), [vars(one) for one in effects])
    return 0


def effect(number: TunedNumber, by: float, rows: Sequence[Row], steps: int, base: dict[str, float]) -> Effect:
    """What the number times a factor changes."""
    value = number.scaled(by)
    number.set(value)
    try:
        times = finish_times(rows, steps)
    finally:
        number.set(number.value)
    change = {row: times[row] / base[row] - 1 for row in base if row in times and times[row] != base[row]}
    return Effect(str(number), str(value), change)


def finish_times(rows: Sequence[Row], steps: int) -> dict[str, float]:
    """The completion time of every row, in us."""
    times = {}
    for row in rows:
        forget()
        name, collective, size, runtime = row
        bytes_, options = parse_bytes(size), {"gap": 0.0, "steps": steps, "workers": 1, "time_limit_s": 600.0}
        try:
            found = synthesize(machine(name), collective, bytes_, runtime=runtime, sms=_SMS, **options)
        except FlowcclError as error:
            print(f"{' '.join(row)}: {error}")
            continue
        times[" ".join(row)] = found.schedule.finish_us
    return times
