"""Start and monitor the processes of a profile, and keep the measurements even if a process fails.

Under mpiexec or torchrun, this process is already one of the ranks; rank 0 then returns the result.
"""

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from flowccl.errors import InputError
from flowccl.files import read_json, write_json
from flowccl.profile.measurements import Measurements, count_lines, finish_lines, measurements_path, planned_rounds
from flowccl.profile.probes import PlanOptions, check_ranks, options_from_json
from flowccl.profile.worker import take_measurements
from flowccl.run.backends import Backend, in_group
from flowccl.run.launch import error_line, is_started, require_extra, run_processes

_SILENCE_S = 120.0  # the processes are ended if no round completes for this long


def measure_machine(
    on: str, ranks: int | None, options: PlanOptions, out: str | Path, on_round: Callable[[int, int], None]
) -> Measurements | None:
    """Measure and write the measurements beside `out`; None if another process has them.

    `on_round` is called with the number of completed rounds and of all rounds. If a rank dies, the error names the
    rank and what was not measured.
    """
    require_extra(on)
    path = measurements_path(out)
    part = path.with_name(path.name + ".part")
    if is_started(on):
        return _join_launcher(on, options, part, path, on_round)
    count = _default_ranks(on) if ranks is None else ranks
    check_ranks(count)
    if on == "nccl" and count > (gpus := _default_ranks(on)):
        here = f"{gpus} GPU{'' if gpus == 1 else 's'} here"
        raise InputError(f"--on nccl needs one GPU per rank: {count} ranks, but {here}")
    part.unlink(missing_ok=True)
    done = 0

    def has_moved() -> bool:
        nonlocal done
        before, done = done, count_lines(part)
        if done != before:
            on_round(done, planned_rounds(part))
        return done != before

    with tempfile.TemporaryDirectory(prefix="flowccl-profile-") as folder:
        write_json(Path(folder) / "job.json", {"on": on, "options": asdict(options), "part": str(part.resolve())})
        try:
            failure = run_processes(on, count, "flowccl.profile.processes:run_job", Path(folder), has_moved, _SILENCE_S)
        except KeyboardInterrupt:
            failure = "interrupted"
    return _finish_measurements(part, path, failure)


def run_job(backend: Backend, folder: Path) -> None:
    """Take part in the measurement as one of the processes."""
    given = read_json(folder / "job.json", 10_000_000)
    take_measurements(backend, given["on"], options_from_json(given["options"]), Path(given["part"]))


def _default_ranks(on: str) -> int:
    """Default number of ranks: the number of GPUs with nccl, otherwise 4."""
    if on != "nccl":
        return 4
    from flowccl.run.torch_run import devices

    return devices()


def _finish_measurements(part: Path, path: Path, failure: str) -> Measurements:
    """Return the measurements; raise an error that lists what is missing if a process failed."""
    from flowccl.profile.show import describe_missing

    if count_lines(part) == 0:
        part.unlink(missing_ok=True)
        raise InputError(f"{failure or 'the processes ended'}; nothing was measured")
    found = finish_lines(part, path)
    if failure or not found.complete:
        done = f"{failure or 'the processes ended'} after {found.rounds_done} of {found.rounds} rounds"
        again = f"the measurements are kept; fit them with: flowccl profile --from {path} --out MACHINE"
        raise InputError(f"{done}; {describe_missing(found)}; {again}")
    return found


def _join_launcher(
    on: str, options: PlanOptions, part: Path, path: Path, on_round: Callable[[int, int], None]
) -> Measurements | None:
    """Take part as one of the processes that mpiexec or torchrun started."""
    done = 0

    def count_round(rounds: int) -> None:
        nonlocal done
        done += 1
        on_round(done, rounds)

    failure, rank = "", 0
    try:
        with in_group(on) as backend:
            rank = backend.process
            take_measurements(backend, on, options, part, count_round)
    except (RuntimeError, KeyboardInterrupt) as error:  # torch raises RuntimeError if a peer is gone
        failure = f"a rank died ({error_line(str(error))})"
    return _finish_measurements(part, path, failure) if rank == 0 else None
