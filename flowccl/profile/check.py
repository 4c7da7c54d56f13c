"""Check a profile: the predicted time of a schedule on the machine, compared with the measured time."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from flowccl.errors import InputError
from flowccl.profile.predict import predict_us
from flowccl.run.measure import CallTiming, RunOptions
from flowccl.run.processes import run_schedule
from flowccl.schedule.resize import resized
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_us


@dataclass(frozen=True)
class PredictionCheck:
    """One size: the predicted time, and the median and mean of the measured times; `wrong` counts incorrect elements.

    All sizes are measured in two passes, and the faster pass counts. `finish_us` is the completion time of the
    schedule, in which transfers on a shared limit follow one another; the processes of a run send them concurrently.
    """

    size_bytes: int
    finish_us: float
    predicted_us: float
    measured_us: float
    mean_us: float
    wrong: int

    @property
    def error(self) -> float:
        """Relative error of the prediction: positive if the predicted time is longer than the measured time."""
        return self.predicted_us / self.measured_us - 1

    def to_json(self) -> dict[str, float]:
        """The fields and the error as a JSON object."""
        return asdict(self) | {"error": self.error}

    @property
    def factor(self) -> float:
        """Ratio of the longer to the shorter of the predicted and the measured time."""
        ratio = self.predicted_us / self.measured_us
        return max(ratio, 1 / ratio)


def check_profile(
    topology: Topology, schedule: Schedule, sizes: Sequence[int], on: str, iterations: int
) -> list[PredictionCheck] | None:
    """Compare predicted and measured times per size; None if another process has the rows."""
    if schedule.topology.fingerprint != topology.fingerprint:
        raise InputError(
            f"the schedule is for another machine ({schedule.topology.name}); synthesize one for this machine with: "
            f"flowccl synth MACHINE {schedule.demand.collective} --size {schedule.demand.size_bytes} --out SCHEDULE"
        )
    if on == "nccl":
        raise InputError("--check runs schedules on gloo or mpi, not on nccl")
    finish = [resized(schedule, size).finish_us for size in sizes]
    predicted = [predict_us(schedule, size) for size in sizes]
    both_directions = (*sizes, *reversed(sizes))
    rows = run_schedule(schedule, on, RunOptions(both_directions, ("uint8",), iterations=-(-iterations // 2)))
    if rows is None:
        return None
    timings = [row.out_of_place for row in rows if row.out_of_place is not None]
    measured = [_faster_pass(pair) for pair in zip(timings, timings[::-1], strict=True)]
    return [
        PredictionCheck(size, end, us, one.median_us, one.time_us, one.wrong)
        for size, end, us, one in zip(sizes, finish, predicted, measured, strict=False)
    ]


def _faster_pass(passes: tuple[CallTiming, CallTiming]) -> CallTiming:
    """Return the pass with the smaller median, since disturbances only slow a pass down; wrong elements add up."""
    return replace(min(passes, key=lambda one: one.median_us), wrong=sum(one.wrong for one in passes))


def table(rows: Sequence[PredictionCheck]) -> str:
    """Format the rows as a text table, one line per size."""
    words = ("finish", "predicted", "measured", "mean")
    lines = [f"{'size':>10}{''.join(f'  {word:>10}' for word in words)}  {'error':>8}  {'factor':>6}  {'wrong':>6}"]
    for row in rows:
        times = "".join(
            f"  {format_us(us):>10}" for us in (row.finish_us, row.predicted_us, row.measured_us, row.mean_us)
        )
        lines.append(
            f"{format_bytes(row.size_bytes):>10}{times}  {row.error:>+8.1%}  {row.factor:>6.2f}  {row.wrong:>6}"
        )
    return "\n".join(lines)
