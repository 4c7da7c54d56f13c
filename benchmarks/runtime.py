"""Schedules for MSCCL++ in its clock: gap, program and the best textbook algorithm of every row.

Rows are machines of today and a few awkward ones, four collectives and three sizes. Rows that are in the file of --json
already are kept, so an interrupted run goes on where it stopped.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clusters import forget
from benchmarks.report import best_baseline, geometric_mean_gap, is_later, replace_rows, stored_rows, warmed_up
from benchmarks.textbook import carried_out
from flowccl.errors import FlowcclError, InputError
from flowccl.lowered import Lowered, lower_for
from flowccl.result import Result
from flowccl.runtimes.machine import known_sms
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, parse_bytes

_FILES = Path(__file__).parents[1] / "tests" / "data" / "machines"
MACHINES = {  # name in tables: machine
    **{name: name for name in ("dgx1", "ndv2:2", "dgx_a100:2", "dgx_h100:1", "dgx_h100:2", "dgx_h100:4", "dgx_h100:8")},
    **{name: name for name in ("hgx_b200:2", "mi300x:2", "torus:4x4", "fat_tree:4")},
    "pcie-hosts": str(_FILES / "pcie_hosts.json"),
    "uneven": str(_FILES / "uneven_switches.json"),
    "uneven-limits": str(_FILES / "uneven_limits.json"),
}
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce", "alltoall")
SIZES = ("64KiB", "4MiB", "256MiB")
SMS = 80  # of a GPU whose model the machine does not name
APART = 0.01  # difference between schedule and program that is reported
Key = tuple[str, str, int]
_SAME = ("time_limit", "sms", "seed", "no_baselines")  # options that all rows of a file share
_KEY = ("machine", "collective", "size_bytes")


@dataclass(frozen=True, slots=True)
class Row:
    """One problem: a machine, a collective and a size."""

    machine: str
    collective: str
    size: str

    @property
    def topology(self) -> Topology:
        """The machine."""
        return read_machine(MACHINES[self.machine])

    @property
    def key(self) -> Key:
        """The key of the row in a file."""
        return self.machine, self.collective, parse_bytes(self.size)

    def __str__(self) -> str:
        return f"{self.machine}/{self.collective}/{self.size}"


def main(arguments: Sequence[str]) -> int:
    """Run the rows that are missing, print them and the summary; exit code 1 where a row fails what is promised."""
    options = _options(arguments)
    stored = stored_rows(options, _SAME, _KEY)
    print(header())
    rows, is_warm = [], False
    for row in all_rows():
        if not _matches(row, options.rows):
            continue
        if row.key not in stored:
            is_warm = is_warm or warmed_up()
            forget()
            stored[row.key] = measure(row, options.time_limit, options.sms, options.seed, not options.no_baselines)
            replace_rows(options, [stored[known.key] for known in all_rows() if known.key in stored])
        rows.append(stored[row.key])
        print(line(rows[-1]), flush=True)
    print("\n" + summary(rows))
    if options.plot:
        from benchmarks.runtime_plot import plot_gaps

        plot_gaps(rows, options.plot)
    return 1 if any(is_later(row) or is_apart(row) or is_below(row) for row in rows) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks runtime", description=__doc__)
    parser.add_argument(
        "--time-limit", type=float, default=10.0, help="seconds of the search for each row (default: 10)"
    )
    parser.add_argument("--sms", type=int, help=f"threadblocks of a GPU (default: all SMs; {SMS} if not known)")
    parser.add_argument(
        "--rows",
        metavar="MACHINE/COLLECTIVE/SIZE",
        nargs="+",
        default=[],
        help='only these rows; parts may be "*" or separated by commas: "dgx_h100:2,dgx1/*/64KiB"',
    )
    parser.add_argument("--no-baselines", action="store_true", help="without the textbook algorithms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="keep the rows here, and go on with the missing ones")
    parser.add_argument("--plot", metavar="FILE", help="draw the gaps (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    for pattern in options.rows:
        parts = pattern.split("/")
        if len(parts) != 3:
            parser.error(f"--rows: write MACHINE/COLLECTIVE/SIZE, got {pattern!r}")
        for part, known in zip(parts, (MACHINES, COLLECTIVES, SIZES), strict=True):
            unknown = [name for name in part.split(",") if name != "*" and name not in known]
            if unknown:
                parser.error(f"--rows: {unknown[0]!r} is not one of {', '.join(known)}")
    return options


def all_rows() -> Iterator[Row]:
    """Every row of the benchmark."""
    for machine in MACHINES:
        for collective in COLLECTIVES:
            for size in SIZES:
                yield Row(machine, collective, size)


def _matches(row: Row, patterns: Sequence[str]) -> bool:
    values = row.machine, row.collective, row.size
    parts = [[part.split(",") for part in pattern.split("/")] for pattern in patterns]
    return not parts or any(all("*" in p or v in p for p, v in zip(part, values, strict=True)) for part in parts)


# -- running a row --------------------------------------------------------------------------------------------------


def measure(row: Row, time_limit_s: float, sms: int | None, seed: int, baselines: bool) -> dict[str, Any]:
    """Synthesize a row for MSCCL++, and carry out the textbook algorithms in the same clock."""
    topology, facts = row.topology, dict(zip(("machine", "collective", "size_bytes"), row.key, strict=True))
    blocks = sms or known_sms(topology) or SMS
    started = time.monotonic()
    try:
        result = synthesize(
            topology,
            row.collective,
            parse_bytes(row.size),
            time_limit_s=time_limit_s,
            runtime="mscclpp",
            sms=blocks,
            seed=seed,
        )
    except FlowcclError as error:
        facts |= {"error": str(error)}
        result = None
    facts["seconds"] = round(time.monotonic() - started, 2)
    if result is not None:
        facts |= _facts(result)
    size = parse_bytes(row.size) if result is None else result.schedule.demand.size_bytes
    answer_us = math.inf if result is None else result.metrics.finish_us
    found = _baselines_us(topology, row.collective, size, blocks, answer_us) if baselines else {}
    return facts | {"baselines_us": found}


def _facts(result: Result) -> dict[str, Any]:
    """What a row shows of a result. `program_us` is that of the program which `flowccl export` writes."""
    schedule, execution = result.schedule, result.schedule.execution
    assert execution is not None
    lowered = result.lowered or _exported(schedule, execution.sms)
    return {
        "finish_us": result.metrics.finish_us,
        "lower_bound_us": result.bound.us,
        "gap": result.gap,
        "method": schedule.method,
        "chunks": schedule.demand.pieces,
        "width": execution.width,
        "protocol": execution.protocol,
        "sms": execution.sms,
        "threadblocks": None if lowered is None else lowered.threadblocks,
        "messages_per_gpu": result.metrics.messages_per_gpu,
        "served_bytes": schedule.demand.size_bytes,
        "program_us": None if lowered is None else lowered.program_us,
        "bound_witness": result.bound.witness,
    }


def _baselines_us(topology: Topology, collective: str, size_bytes: int, sms: int, answer_us: float) -> dict[str, float]:
    """The completion time of each textbook algorithm, with its best number of chunks per block.

    One that is earlier than the answer counts only where MSCCL++ has a program for it.
    """
    found: dict[str, float] = {}
    for schedule in carried_out(topology, collective, size_bytes, sms):
        name = schedule.method + (", packets" if schedule.execution is not None and schedule.execution.packets else "")
        if schedule.finish_us < found.get(name, math.inf) and (
            schedule.finish_us >= answer_us or _exported(schedule, sms)
        ):
            found[name] = schedule.finish_us
    return found


def _exported(schedule: Schedule, sms: int) -> Lowered | None:
    """The program of a schedule, for which the time limit of the search may not have left time; None if it has none."""
    try:
        return lower_for(schedule, PROFILES["mscclpp"], sms)
    except InputError:
        return None


# -- rows, files, text ----------------------------------------------------------------------------------------------


def is_apart(row: dict[str, Any]) -> bool:
    """Whether the times of the schedule and of its program differ by more than 1 %; not where there is no program."""
    program_us = row.get("program_us")
    return program_us is not None and abs(program_us / row["finish_us"] - 1) > APART


def is_below(row: dict[str, Any]) -> bool:
    """Whether the schedule or its program is earlier than the lower bound, which shows a mistake of ours."""
    times = [us for us in (row.get("finish_us"), row.get("program_us")) if us is not None]
    return any(us < row["lower_bound_us"] * (1 - 1e-9) for us in times)


def header() -> str:
    """The line above the rows."""
    columns = f"{'machine':<13} {'collective':<14} {'size':>7} {'us':>10} {'program':>10} {'bound':>10} {'gap':>8}"
    return (
        f"{columns}  {'method':<16} {'chunks':>6} {'width':>5} {'proto':<6} {'blocks':>6}  best textbook algorithm, us"
    )


def line(row: dict[str, Any]) -> str:
    """One line of the printed table."""
    size = format_size(row["size_bytes"])
    what = f"{row['machine']:<13} {row['collective']:<14} {size:>7}"
    name, us = best_baseline(row)
    beside = f"{name} {us:.6g}" if name else "none"
    if "error" in row:
        return f"{what} {row['error']}; {beside}"
    program = "-" if row["program_us"] is None else f"{row['program_us']:.6g}"
    times = f"{row['finish_us']:10.6g} {program:>10} {row['lower_bound_us']:10.6g} {row['gap']:8.2%}"
    blocks = "-" if row["threadblocks"] is None else row["threadblocks"]
    how = f"{row['method']:<16} {row['chunks']:>6} {row['width']:>5} {row['protocol']:<6} {blocks:>6}"
    marks = [word for test, word in ((is_later, "LATER"), (is_apart, "APART"), (is_below, "BELOW")) if test(row)]
    return "  ".join([f"{what} {times}", how, beside, *marks])


def format_size(size_bytes: int) -> str:
    """The size as it is asked for, in KiB or MiB."""
    return next((size for size in SIZES if parse_bytes(size) == size_bytes), format_bytes(size_bytes))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Gaps by size and by collective; rows that are later than a textbook algorithm, or apart from their programs."""
    good = [row for row in rows if "error" not in row]
    if not good:
        return f"{len(rows)} rows, none of which finished"
    lines = [f"{'gap above the lower bound':<26} {'rows':>5} {'geometric mean':>15} {'median':>8} {'largest':>8}"]
    sizes = sorted({row["size_bytes"] for row in good})
    for size in sizes:
        lines.append(_gaps(format_size(size), [row for row in good if row["size_bytes"] == size]))
        for name in COLLECTIVES:
            part = [row for row in good if row["size_bytes"] == size and row["collective"] == name]
            lines += [_gaps(f"  {name}", part)] if part else []
    lines += [_gaps(name, part) for name in COLLECTIVES if (part := [row for row in good if row["collective"] == name])]
    lines.append(_gaps("all", good))
    without = sum(row["program_us"] is None for row in good)
    lines.append("")
    lines.append(f"{len(rows)} rows, {len(rows) - len(good)} failed")
    lines.append(_named("later than a textbook algorithm by more than 0.5 %", [row for row in rows if is_later(row)]))
    lines.append(_named("schedule and program differ by more than 1 %", [row for row in good if is_apart(row)]))
    if without:
        lines.append(f"  {without} rows have no program (column -), so their times could not be compared")
    lines.append(_named("below the lower bound", [row for row in good if is_below(row)]))
    return "\n".join(lines)


def _gaps(name: str, rows: Sequence[dict[str, Any]]) -> str:
    gaps = [row["gap"] for row in rows]
    middle, largest = f"{float(np.median(gaps)):.1%}", f"{max(gaps):.1%}"
    return f"{name:<26} {len(rows):>5} {geometric_mean_gap(gaps):>15.1%} {middle:>8} {largest:>8}"


def _named(what: str, rows: Sequence[dict[str, Any]]) -> str:
    names = ", ".join(f"{row['machine']}/{row['collective']}/{format_size(row['size_bytes'])}" for row in rows)
    return f"{what}: {len(rows)} rows" + (f": {names}" if names else "")
