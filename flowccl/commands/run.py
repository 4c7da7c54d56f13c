"""`flowccl run`: execute a schedule or a plan on real data."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, Parser, natural, positive, protocol
from flowccl.errors import FileError, InputError, InvalidScheduleError

if TYPE_CHECKING:
    from flowccl.run.measure import Row, RunOptions
    from flowccl.schedule.schedule import Schedule

_GPU_ONLY = {
    "one_gpu": "--one-gpu",
    "warmup": "--warmup",
    "timeout": "--timeout",
    "instances": "--instances",
    "proto": "--proto",
    "root": "--root",
}
_WARMUP, _TIMEOUT_S = 5, 60
_ITERATIONS = {"mscclpp": 20}  # as in nccl-tests; processes on the CPU are slower


def add(commands: Commands) -> None:
    """Add the command and its options."""
    run = commands.add_parser(
        "run",
        help="execute a schedule on real data",
        usage="flowccl run FILE [options]",
        description=(
            "Execute a schedule on real data, compare every result with the definition of the collective, and print\n"
            "the columns of nccl-tests (size, count, type, time, algbw, busbw, wrong elements). With --on mscclpp,\n"
            "the schedule, or a plan written by `flowccl export --to mscclpp`, is executed by MSCCL++ on CUDA GPUs.\n"
            "\nexit code 0: all results are correct; 1: the schedule is invalid or a result is wrong."
        ),
        epilog=(
            "examples:\n"
            "  flowccl run ag.json --on numpy --size 1MB 28 --dtype float32 float16 --inplace\n"
            "  flowccl run ag.json --on gloo\n"
            "  flowccl run ag.json --on mpi --size 16MB --iterations 20\n"
            "  flowccl run ar.json --on mscclpp --sizes 64KiB:256MiB:4 --inplace      one GPU per rank\n"
            "  flowccl run ar-plan.json --on mscclpp --one-gpu                        all ranks on one GPU\n"
            "  torchrun --nproc-per-node 8 -m flowccl run ar.json --on mscclpp        in existing processes"
        ),
    )
    run.add_argument("schedule", metavar="FILE", help="a schedule file written by `flowccl synth`; mscclpp: or a plan")
    run.add_argument(
        "--on",
        choices=("numpy", "gloo", "mpi", "mscclpp"),
        default="numpy",
        help="numpy: in this process; gloo (PyTorch), mpi, mscclpp (GPUs): one process per rank (default: numpy)",
    )
    run.add_argument("--ranks", metavar="N", type=positive, help="number of processes (default: one per GPU)")
    run.add_argument(
        "--size",
        metavar="SIZE",
        nargs="+",
        help="buffer sizes as nccl-tests counts them (default: the schedule's size; plans: 1MiB)",
    )
    run.add_argument(
        "--sizes",
        metavar="LOW:HIGH",
        help="many sizes: LOW:HIGH[:FACTOR], e.g. 64KiB:256MiB:4, each FACTOR times the one before (default: 2)",
    )
    run.add_argument(
        "--dtype", metavar="TYPE", nargs="+", default=["float32"], help="element types, e.g. float16 (default: float32)"
    )
    run.add_argument("--inplace", action="store_true", help="also run in place")
    run.add_argument("--iterations", metavar="N", type=positive, help="timed calls per row (default: 5; mscclpp: 20)")
    run.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    _add_mscclpp(run)
    run.set_defaults(run=_run)


def _add_mscclpp(run: Parser) -> None:
    gpus = run.add_argument_group("mscclpp")
    gpus.add_argument("--one-gpu", action="store_true", help="all ranks on one GPU, as processes that share it (MPS)")
    gpus.add_argument("--warmup", metavar="N", type=natural, help="calls before the timed ones (default: 5)")
    gpus.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive,
        help="end all ranks after this time without progress (default: 60)",
    )
    gpus.add_argument(
        "--instances", metavar="N", type=positive, help="for a schedule: parallel parts, as of `export` (default: 1)"
    )
    gpus.add_argument(
        "--proto", metavar="NAME", type=protocol, help="for a schedule: protocol, as of `export` (default: auto)"
    )
    gpus.add_argument("--root", metavar="RANK", type=natural, help="root of a broadcast plan (default: 0)")


def _run(options: argparse.Namespace) -> int:
    from flowccl.files import json_format
    from flowccl.run.measure import table

    if json_format(options.schedule) == "flowccl-reshard-plan":
        from flowccl.commands.run_reshard import run_reshard

        return run_reshard(options)
    rows, ranks = _run_mscclpp(options) if options.on == "mscclpp" else _run_schedule(options)
    if rows is None:  # another process prints the table
        return 0
    if options.json:
        print(json.dumps({"on": options.on, "ranks": ranks, "rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        print(table(rows, ranks, f"flowccl run --on {options.on}"))
    return 1 if any(timing.wrong for row in rows for timing in (row.out_of_place, row.in_place) if timing) else 0


def _run_schedule(options: argparse.Namespace) -> "tuple[list[Row] | None, int]":
    from flowccl.run.processes import run_schedule

    for name, text in _GPU_ONLY.items():
        if getattr(options, name) not in (None, False):
            raise InputError(f"{text} is for --on mscclpp")
    schedule = _load(options.schedule)
    chosen = _chosen(options, schedule.demand.size_bytes)
    return run_schedule(schedule, options.on, chosen, options.ranks), schedule.demand.num_gpus


def _run_mscclpp(options: argparse.Namespace) -> "tuple[list[Row] | None, int]":
    """Run a plan as it is, or the plans of a schedule, which are written to a temporary folder."""
    import tempfile

    from flowccl.export import ExportOptions
    from flowccl.run.mscclpp.plan_facts import is_plan, read_plan
    from flowccl.run.mscclpp.run_plans import GpuOptions, plans_of, root_of, run_plans

    if options.ranks is not None:
        raise InputError("--ranks is not for --on mscclpp: the plan decides the number of processes")
    warmup = _WARMUP if options.warmup is None else options.warmup
    gpu = GpuOptions(options.one_gpu, warmup, float(options.timeout or _TIMEOUT_S), options.root or 0)
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        if is_plan(options.schedule):
            for name, text in {"inplace": "--inplace", "instances": "--instances", "proto": "--proto"}.items():
                if getattr(options, name):
                    raise InputError(f"{text} is for schedules: {options.schedule} is a plan, which fixes it")
            paths, size = [Path(options.schedule)], 1 << 20
            _warn_of_findings(options.schedule, gpu.root)
        else:
            schedule = _load(options.schedule)
            export = ExportOptions(instances=options.instances or 1, protocol=options.proto or "auto")
            paths, size = plans_of(schedule, export, options.inplace, Path(folder)), schedule.demand.size_bytes
            gpu = dataclasses.replace(gpu, root=root_of(schedule))
        return run_plans(paths, _chosen(options, size), gpu), read_plan(paths[0]).ranks


def _warn_of_findings(path: str, root: int) -> None:
    """Print a warning if the interpreter of exported files finds errors in a plan; elements may still be right."""
    from flowccl.export import check
    from flowccl.wording import counted

    try:
        findings = check(path, "mscclpp", root)[1]
    except FileError as error:
        print(f"flowccl: warning: the plan cannot be proved before it runs: {error}", file=sys.stderr)
        return
    if findings:
        found = f"the interpreter finds {counted(len(findings), 'error')} in {path}; the first: {findings[0]}"
        print(f"flowccl: warning: {found}", file=sys.stderr)


def _load(path: str) -> "Schedule":
    from flowccl.schedule.files import load_schedule
    from flowccl.verifier.verify import verify

    schedule = load_schedule(path)
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{path} is invalid and is not run: {violations[0]}")
    return schedule


def _chosen(options: argparse.Namespace, size: int) -> "RunOptions":
    from flowccl.run.measure import RunOptions, parse_sweep
    from flowccl.units import parse_bytes

    if options.size and options.sizes:
        raise InputError("give --size or --sizes, not both")
    sizes = parse_sweep(options.sizes) if options.sizes else [parse_bytes(text) for text in options.size or []]
    iterations = options.iterations or _ITERATIONS.get(options.on, 5)
    return RunOptions(tuple(sizes or [size]), tuple(options.dtype), options.inplace, iterations)
