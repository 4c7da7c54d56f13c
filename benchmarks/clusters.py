"""Clusters of today, whole and with faults: gap, best baseline, and the time on MSCCL++ of every row.

Every machine runs whole (all collectives and sizes), with one NIC or link lost, and with one slow (fewer rows). Rows
that are in the file of --json already are kept, so an interrupted run goes on where it stopped.
"""

import argparse
import functools
import gc
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.report import best_baseline, geometric_mean_gap, is_later, replace_rows, stored_rows
from flowccl.analysis.compare import BASELINES, HALVES, halves_us
from flowccl.errors import FlowcclError
from flowccl.synthesis import synthesize
from flowccl.synthesis.options import SearchOptions
from flowccl.topology.faults import with_faults
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, parse_bytes

FAT_TREE = "dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2"
NIC = ("--without", "gpu3 <-> rail3"), ("--slow", "gpu3 <-> rail3=100Gb/s")
MACHINES = {  # machine: what is lost, what is slow
    "dgx_h100:2": NIC,
    "dgx_h100:4": NIC,
    "dgx_h100:8": NIC,
    "dgx_h100:4:nvls=false": NIC,
    "hgx_b200:4": NIC,
    "mi300x:2": NIC,
    # One switch stands for all NVLinks of a GPU: one of its 18 NVLinks is lost, or half of them.
    "gb200_nvl72:1": (("--slow", "gpu3 <-> nvswitch0=850GB/s"), ("--slow", "gpu3 <-> nvswitch0=450GB/s")),
    FAT_TREE: (("--without", "gpu3 <-> leaf0"), ("--slow", "gpu3 <-> leaf0=100Gb/s")),
    "torus:4x4x4": (("--without", "gpu0 <-> gpu1"), ("--slow", "gpu0 <-> gpu1=50Gb/s")),
}
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
SIZES = ("64KB", "1MB", "64MB", "1GB")
WITH_FAULT = (  # rows of machines with a fault
    ("allreduce", "1MB"),
    ("allreduce", "64MB"),
    ("allgather", "64MB"),
    ("reduce_scatter", "1MB"),
    ("alltoall", "64MB"),
)
_PLANNING = "flowccl.methods.", "flowccl.topology.", "flowccl.adapters."  # modules that keep plans
Key = tuple[str, str, str, int]
_SAME = ("time_limit", "baseline_limit", "no_runtime", "seed")  # options that all rows of a file share
_KEY = ("machine", "fault", "collective", "size_bytes")


@dataclass(frozen=True, slots=True)
class Row:
    """One problem: a machine with a fault ("" where it is whole), a collective and a size."""

    machine: str
    fault: str
    collective: str
    size: str

    @property
    def topology(self) -> Topology:
        """The machine with its fault."""
        option, _, link = self.fault.partition(" ")
        given = {option.removeprefix("--"): [link]} if self.fault else {}
        return with_faults(read_machine(self.machine), **given)

    @property
    def key(self) -> Key:
        """The key of the row in a file."""
        return self.machine, self.fault, self.collective, parse_bytes(self.size)


def main(arguments: Sequence[str]) -> int:
    """Run the rows that are missing, print them and the summary; exit code 1 if a row is later than a baseline."""
    options = _options(arguments)
    stored = stored_rows(options, _SAME, _KEY)
    chosen = [row for row in all_rows() if _matches(row, options)]
    print(f"{'machine':<24} {'fault':<32} {'collective':<14} {'size':>6} {'us':>10} {'bound':>10} {'gap':>7}  baseline")
    worker = _Worker()
    rows = []
    for row in chosen:
        if row.key not in stored:
            stored[row.key] = worker.run(row, options)
            replace_rows(options, [stored[known.key] for known in all_rows() if known.key in stored])
        rows.append(stored[row.key])
        print(line(rows[-1]), flush=True)
    worker.close()
    print(summary(rows))
    if options.plot:
        from benchmarks.cluster_plot import plot_gaps

        plot_gaps(rows, options.plot)
    return 1 if any(is_later(row) for row in rows) else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks clusters", description=__doc__)
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds of auto for each row (default: 5)")
    parser.add_argument("--baseline-limit", type=float, default=2.0, help="seconds of each baseline (default: 2)")
    parser.add_argument("--machines", help=f"only these, separated by commas: {', '.join(MACHINES)}")
    parser.add_argument("--collectives", help=f"only these: {', '.join(COLLECTIVES)}")
    parser.add_argument("--sizes", help=f"only these: {', '.join(SIZES)}")
    parser.add_argument("--faults", choices=("none", "only"), help="no rows with faults, or only these")
    parser.add_argument("--no-runtime", action="store_true", help="without the times on MSCCL++")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="keep the rows here, and go on with the missing ones")
    parser.add_argument("--plot", metavar="FILE", help="draw the gaps (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    for flag, known in (("machines", MACHINES), ("collectives", COLLECTIVES), ("sizes", SIZES)):
        unknown = [name for name in (getattr(options, flag) or "").split(",") if name and name not in known]
        if unknown:
            parser.error(f"--{flag}: {unknown[0]!r} is not one of {', '.join(known)}")
    return options


def all_rows() -> Iterator[Row]:
    """Every row of the benchmark."""
    for machine, faults in MACHINES.items():
        for collective in COLLECTIVES:
            for size in SIZES:
                yield Row(machine, "", collective, size)
        for fault in faults:
            for collective, size in WITH_FAULT:
                yield Row(machine, " ".join(fault), collective, size)


def _matches(row: Row, options: argparse.Namespace) -> bool:
    given = ((options.machines, row.machine), (options.collectives, row.collective), (options.sizes, row.size))
    wanted = all(names is None or value in names.split(",") for names, value in given)
    return wanted and (options.faults is None or bool(row.fault) == (options.faults == "only"))


# -- running a row --------------------------------------------------------------------------------------------------


class _Worker:
    """A process that runs rows, so that a row that is killed for memory ends only itself."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None

    def run(self, row: Row, options: argparse.Namespace) -> dict[str, Any]:
        """The result of a row; one with `error` where it failed."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_load)
        facts = dict(zip(("machine", "fault", "collective", "size_bytes"), row.key, strict=True))
        try:
            return facts | self.pool.submit(measure, row, vars(options)).result()
        except BrokenProcessPool:
            self.pool = None
            return facts | {"error": "killed"}

    def close(self) -> None:
        """End the process."""
        if self.pool is not None:
            self.pool.shutdown()


def _load() -> None:
    """Load all compiled loops, so that no row waits for them."""
    from flowccl.compilation import warm_up
    from flowccl.methods.registry import methods_where

    warm_up(methods_where(lambda info: info.in_auto is not None or info.baseline))


def measure(row: Row, options: dict[str, Any]) -> dict[str, Any]:
    """Synthesize a row with auto, with the baselines, and for MSCCL++."""
    _reset_peak()
    forget()
    started = time.monotonic()
    topology, size = row.topology, parse_bytes(row.size)
    try:
        result = synthesize(
            topology, row.collective, size, time_limit_s=options["time_limit"], seed=options["seed"], gap=0.005
        )
    except FlowcclError as error:
        return {"error": str(error)}
    facts = result.to_json()
    seconds, peak_MB = time.monotonic() - started, _peak_MB()
    baselines = {name: _baseline_us(name, row, topology, options) for name in BASELINES}
    runtime_us = None if options["no_runtime"] else _runtime_us(row, topology, options)
    kept = ("finish_us", "lower_bound_us", "gap", "method", "chunks", "messages_per_gpu", "transfers", "bound_witness")
    return {name: facts[name] for name in kept} | {
        "baselines_us": {name: us for name, us in baselines.items() if us is not None},
        "mscclpp_us": runtime_us,
        "seconds": round(seconds, 2),
        "peak_memory_MB": peak_MB,
    }


def _baseline_us(name: str, row: Row, topology: Topology, options: dict[str, Any]) -> float | None:
    """The completion time of a baseline with its best number of chunks; None where it does not apply."""
    size, limits = parse_bytes(row.size), {"seed": options["seed"], "gap": 0.005}
    forget()
    try:
        if name == HALVES:
            return halves_us(
                topology, row.collective, size, SearchOptions(time_limit_s=options["time_limit"], **limits)
            )
        found = synthesize(
            topology, row.collective, size, method=name, time_limit_s=options["baseline_limit"], **limits
        )
    except FlowcclError:
        return None
    return found.schedule.finish_us


def _runtime_us(row: Row, topology: Topology, options: dict[str, Any]) -> float | None:
    """The time of the program that `synth --for mscclpp` finds; None where it finds none."""
    forget()
    try:
        found = synthesize(
            topology,
            row.collective,
            parse_bytes(row.size),
            time_limit_s=options["time_limit"],
            seed=options["seed"],
            runtime="mscclpp",
        )
    except FlowcclError:
        return None
    return None if found.lowered is None else found.lowered.program_us


def forget() -> None:
    """Forget the plans of earlier searches: each begins as in a process of its own, whichever comes first."""
    for known in gc.get_objects():
        if isinstance(known, functools._lru_cache_wrapper) and known.__module__.startswith(_PLANNING):
            known.cache_clear()


def _reset_peak() -> None:
    """Let the peak of the process's memory start again from here, where the system can (Linux)."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5", encoding="ascii")


def _peak_MB() -> float | None:
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="ascii")) if status.exists() else None
    return round(int(found[1]) * 1024 / 1e6, 1) if found else None


# -- rows, files, text ----------------------------------------------------------------------------------------------


def line(row: dict[str, Any]) -> str:
    """One line of the printed table."""
    what = f"{short(row['machine']):<24} {faulty(row['fault']):<32} {row['collective']:<14} "
    what += f"{format_bytes(row['size_bytes']).replace(' ', ''):>6}"
    if "error" in row:
        return f"{what} {row['error']}"
    name, us = best_baseline(row)
    beside = f"{name} {us:.6g}" + ("  LATER" if is_later(row) else "")
    program = f", mscclpp {row['mscclpp_us']:.6g}" if row["mscclpp_us"] is not None else ""
    found = f"{row['method']} with {row['chunks']} chunks, {row['messages_per_gpu']} messages{program}"
    return f"{what} {row['finish_us']:10.6g} {row['lower_bound_us']:10.6g} {row['gap']:7.2%}  {beside}; {found}"


def short(machine: str) -> str:
    """The name of a machine in tables."""
    return "dgx_h100:4, fat tree 2:1" if machine == FAT_TREE else machine


def faulty(fault: str) -> str:
    """The fault of a machine in tables."""
    option, _, link = fault.partition(" ")
    return {"": "whole", "--without": f"without {link}"}.get(option, link.replace("=", " at "))


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Geometric mean of the gaps, share of small ones, rows later than a baseline, peak memory."""
    good = [row for row in rows if "error" not in row]
    if not good:
        return f"{len(rows)} rows, none of which finished"
    gaps = [row["gap"] for row in good]
    near = sum(gap <= 0.1 for gap in gaps)
    peak = max(row["peak_memory_MB"] or 0.0 for row in good)
    return (
        f"{len(rows)} rows, {len(rows) - len(good)} failed: geometric mean of the gaps {geometric_mean_gap(gaps):.2%}, "
        f"at most 10 % on {near} ({near / len(rows):.0%}), largest {max(gaps):.1%}; "
        f"later than the best baseline on {sum(map(is_later, good))}; peak memory {peak:.0f} MB"
    )
