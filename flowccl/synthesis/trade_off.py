"""The trade-off between completion time and number of messages: what more chunks buy, in the model and on a runtime."""

from dataclasses import asdict, dataclass
from typing import Any

from flowccl.errors import InputError
from flowccl.lowered import lower_for
from flowccl.result import Result
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.verifier.verify import verify


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """One schedule of the trade-off; no other one found is as early with as few messages per GPU.

    `program_us` is the time of its program on the runtime; None where no runtime was asked for.
    """

    messages_per_gpu: int
    chunks: int
    chunk_bytes: int
    transfers: int
    finish_us: float
    program_us: float | None
    method: str

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object."""
        return asdict(self)


def trade_off(result: Result, sms: int | None = None) -> list[TradeOffPoint]:
    """Return the schedules of a result that are earlier than all with fewer messages, the fewest messages first.

    Times are those of the programs where the result was made for a runtime; schedules that it cannot run are left out.
    """
    points = [point for one in result.found if not verify(one) and (point := _point(one, sms)) is not None]
    points.sort(key=lambda point: (point.messages_per_gpu, _time_us(point), point.transfers))
    front: list[TradeOffPoint] = []
    for point in points:
        if not front or _time_us(point) < _time_us(front[-1]):
            front.append(point)
    return front


def _time_us(point: TradeOffPoint) -> float:
    return point.finish_us if point.program_us is None else point.program_us


def _point(schedule: Schedule, sms: int | None) -> TradeOffPoint | None:
    program_us = None
    if schedule.runtime is not None:
        try:
            program_us = lower_for(schedule, schedule.runtime, sms).program_us
        except InputError:
            return None
    metrics, demand = measure(schedule), schedule.demand
    return TradeOffPoint(
        metrics.messages_per_gpu,
        demand.pieces,
        int(demand.chunk_bytes.min()),
        len(schedule),
        metrics.finish_us,
        program_us,
        schedule.method,
    )
