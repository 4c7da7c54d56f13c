"""Is the profile right? The time that a schedule should take on the machine, against the time that it takes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from flowccl.demand.collectives import collective
from flowccl.errors import InputError
from flowccl.profile.predict import predict_us
from flowccl.run.buffer_layout import named_root
from flowccl.run.measure import Options, TimeExpanded
from flowccl.run.processes import run_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_us


@dataclass(frozen=True)
class Checked:
    """One size: the predicted time, the median and the mean of the measured ones; `wrong` elements: should be none.

    Measured in two passes through all sizes, of which the quicker counts. `finish_us` is that of the schedule, whose
    transfers wait for each other where the processes send at once.
    """

    size_bytes: int
    finish_us: float
    predicted_us: float
    measured_us: float
    mean_us: float
    wrong: int

    @property
    def error(self) -> float:
        """How much longer the prediction is than the truth, as a share of the truth; negative where it is shorter."""
        return self.predicted_us / self.measured_us - 1

    def to_json(self) -> dict[str, float]:
        """For programs."""
        return asdict(self) | {"error": self.error}

    @property
    def factor(self) -> float:
        """How many times one is the other, whichever is larger."""
        ratio = self.predicted_us / self.measured_us
        return max(ratio, 1 / ratio)


def check_profile(
    topology: Topology, schedule: Schedule, sizes: Sequence[int], on: str, iterations: int
) -> list[Checked] | None:
    """Predicted against measured, per size; None where another process has the rows."""
    if schedule.topology.fingerprint != topology.fingerprint:
        raise InputError(
            f"the schedule is for another machine ({schedule.topology.name}); make one with: "
            f"flowccl synth MACHINE {schedule.demand.collective} --size {schedule.demand.size_bytes} --out SCHEDULE"
        )
    if on == "nccl":
        raise InputError("schedules are run on gloo or mpi; there is no run on nccl")
    finish = [resize(schedule, size).finish_us for size in sizes]
    predicted = [predict_us(schedule, size) for size in sizes]
    there_and_back = (*sizes, *reversed(sizes))
    rows = run_schedule(schedule, on, Options(there_and_back, ("uint8",), iterations=-(-iterations // 2)))
    if rows is None:
        return None
    timed = [row.out_of_place for row in rows]
    measured = [_quicker(pair) for pair in zip(timed, timed[::-1], strict=True)]
    return [
        Checked(size, end, us, one.median_us, one.time_us, one.wrong)
        for size, end, us, one in zip(sizes, finish, predicted, measured, strict=False)
    ]


def _quicker(passes: tuple[TimeExpanded, TimeExpanded]) -> TimeExpanded:
    """The pass with the lesser median, as with probes: what disturbs a while only slows. All that is wrong counts."""
    return replace(min(passes, key=lambda one: one.median_us), wrong=sum(one.wrong for one in passes))


def resize(schedule: Schedule, size_bytes: int) -> Schedule:
    """The same transfers in the same order for another size, each as early as it can.

    Starts are stretched with the chunks first, so that what came after something still does.
    """
    demand, root = schedule.demand, named_root(schedule.demand)
    if root is None:
        raise InputError(f"a {demand.collective} made of chunks has its own size; it cannot be checked at others")
    larger = collective(demand.collective, demand.num_gpus, size_bytes, demand.pieces, max(root, 0))
    stretch = max(1.0, float((larger.chunk_bytes / demand.chunk_bytes).max()) * (1 + 1e-9))
    start = np.ceil(schedule.start_ps * stretch).astype(np.int64)
    return left_shift(replace(schedule, demand=larger, start_ps=start))


def table(rows: Sequence[Checked]) -> str:
    """A line for each size."""
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
