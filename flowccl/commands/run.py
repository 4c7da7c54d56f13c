"""`flowccl run`: a schedule on real bytes."""

import argparse

from flowccl.commands.parts import Commands, positive
from flowccl.errors import InvalidScheduleError


def add(commands: Commands) -> None:
    """The command and its options."""
    run = commands.add_parser(
        "run",
        help="run a schedule on real bytes",
        description="Run a schedule, check the result against the definition, print nccl-tests' columns.",
        epilog=(
            "examples:\n"
            "  flowccl run ag.json --on numpy --size 1MB 28 --dtype float32 float16 --inplace\n"
            "  flowccl run ag.json --on gloo\n"
            "  flowccl run ag.json --on mpi --size 16MB --iterations 20"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("schedule", metavar="FILE", help="a schedule written by synth")
    run.add_argument("--on", choices=("numpy", "gloo", "mpi"), default="numpy", help="default: numpy, in one process")
    run.add_argument("--ranks", metavar="N", type=positive, help="processes (default: one per rank of the schedule)")
    run.add_argument("--size", metavar="SIZE", nargs="+", help="bytes as nccl-tests counts (default: the schedule's)")
    run.add_argument("--dtype", metavar="TYPE", nargs="+", default=["float32"], help="default: float32")
    run.add_argument("--inplace", action="store_true", help="also in place")
    run.add_argument("--iterations", metavar="N", type=positive, default=5, help="timed calls (default: 5)")
    run.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from flowccl.run.measure import Options, table
    from flowccl.run.processes import run_schedule
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes
    from flowccl.verifier.verify import verify

    schedule = load_schedule(options.schedule)
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{options.schedule} is not run, for it is invalid: {violations[0]}")
    sizes = tuple(parse_bytes(size) for size in options.size or [schedule.demand.size_bytes])
    chosen = Options(sizes, tuple(options.dtype), options.inplace, options.iterations)
    rows = run_schedule(schedule, options.on, chosen, options.ranks)
    if rows is None:  # another process of this run prints
        return 0
    print(table(rows, schedule.demand.num_gpus, f"flowccl run --on {options.on}"))
    return 1 if any(timed.wrong for row in rows for timed in (row.out_of_place, row.in_place) if timed) else 0
