"""`flowccl run`: execute a schedule on real data."""

import argparse

from flowccl.commands.parts import Commands, positive
from flowccl.errors import InvalidScheduleError


def add(commands: Commands) -> None:
    """Add the command and its options."""
    run = commands.add_parser(
        "run",
        help="execute a schedule on real data",
        usage="flowccl run FILE [options]",
        description=(
            "Execute a schedule on real data, compare every result with the definition of the collective, and print\n"
            "the columns of nccl-tests (size, count, type, time, algbw, busbw, wrong elements).\n"
            "\nexit code 0: all results are correct; 1: the schedule is invalid or a result is wrong."
        ),
        epilog=(
            "examples:\n"
            "  flowccl run ag.json --on numpy --size 1MB 28 --dtype float32 float16 --inplace\n"
            "  flowccl run ag.json --on gloo\n"
            "  flowccl run ag.json --on mpi --size 16MB --iterations 20"
        ),
    )
    run.add_argument("schedule", metavar="FILE", help="a schedule file written by `flowccl synth`")
    run.add_argument(
        "--on",
        choices=("numpy", "gloo", "mpi"),
        default="numpy",
        help="numpy: in this process; gloo (PyTorch) or mpi: one process per rank (default: numpy)",
    )
    run.add_argument("--ranks", metavar="N", type=positive, help="number of processes (default: the schedule's GPUs)")
    run.add_argument(
        "--size",
        metavar="SIZE",
        nargs="+",
        help="buffer sizes as nccl-tests counts them (default: the schedule's size)",
    )
    run.add_argument(
        "--dtype", metavar="TYPE", nargs="+", default=["float32"], help="element types, e.g. float16 (default: float32)"
    )
    run.add_argument("--inplace", action="store_true", help="also run in place")
    run.add_argument("--iterations", metavar="N", type=positive, default=5, help="timed calls per row (default: 5)")
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from flowccl.run.measure import RunOptions, table
    from flowccl.run.processes import run_schedule
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes
    from flowccl.verifier.verify import verify

    schedule = load_schedule(options.schedule)
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{options.schedule} is invalid and is not run: {violations[0]}")
    sizes = tuple(parse_bytes(size) for size in options.size or [schedule.demand.size_bytes])
    chosen = RunOptions(sizes, tuple(options.dtype), options.inplace, options.iterations)
    rows = run_schedule(schedule, options.on, chosen, options.ranks)
    if rows is None:  # another process prints the table
        return 0
    print(table(rows, schedule.demand.num_gpus, f"flowccl run --on {options.on}"))
    return 1 if any(timing.wrong for row in rows for timing in (row.out_of_place, row.in_place) if timing) else 0
