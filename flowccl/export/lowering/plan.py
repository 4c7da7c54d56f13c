"""A plan: for every GPU, threadblocks with the steps they take, as runtimes run them.

schedule -> moves (moves.py) -> steps on buffers (lower.py) -> threadblocks and dependencies (blocks.py) -> Plan
"""

from collections import Counter
from dataclasses import dataclass, replace

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_operations import count_operations
from flowccl.export.limits import FIFO, Excess, Limits, check_collective, check_protocol
from flowccl.export.lowering.buffers import Layout, layout_of
from flowccl.export.lowering.lower import Work, lower
from flowccl.export.lowering.moves import Event, channels_needed, moves_of, order_events
from flowccl.export.lowering.threadblocks import Block, Shape, assign_channels, make_blocks
from flowccl.schedule.schedule import Schedule

MAX_INSTANCES = 64
_CROWDED = ("channels", "threadblocks per gpu", "threadblock to wait for")


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What one GPU does: chunks of its input, output and scratch buffers, and its threadblocks."""

    rank: int
    input: int
    output: int
    scratch: int
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What all GPUs do. `chunks` is the number of chunks of the whole buffer."""

    layout: Layout
    protocol: str
    gpus: tuple[GpuPlan, ...]

    @property
    def chunks(self) -> int:
        """Chunks of the whole buffer: the larger of input and output."""
        return self.layout.chunks

    @property
    def channels(self) -> int:
        """Channels, counted from 0."""
        return 1 + max((block.channel for gpu in self.gpus for block in gpu.blocks), default=0)


def make_plan(
    schedule: Schedule, limits: Limits, *, inplace: bool = False, instances: int = 1, protocol: str = "Simple"
) -> Plan:
    """The plan of a schedule for a target, within the target's limits.

    Where a limit is exceeded, busy connections are spread over more channels; then contiguous chunks are merged
    too; then receives and sends share threadblocks (and become one instruction where the target has it). What costs
    least time comes first. InputError with the limit, the need and what would fit, where nothing helps.
    """
    check_collective(limits, schedule.demand.collective)
    check_protocol(limits, protocol)
    if not 1 <= instances <= MAX_INSTANCES:
        raise InputError(f"instances must be 1 to {MAX_INSTANCES}, got {instances}")
    layout = layout_of(schedule.demand, instances, inplace)
    moves = moves_of(schedule)
    events: dict[bool, list[Event]] = {}
    lowered: dict[tuple[bool, bool], list[Work]] = {}
    needed = channels_needed(moves, FIFO[protocol])
    least: list[Excess] = []
    crowded: set[Shape] = set()  # families of shapes, with their lane left out
    for shape in _shapes(limits):
        if replace(shape, lane=0) in crowded:
            continue
        if shape.ahead not in events:
            events[shape.ahead] = order_events(moves, FIFO[protocol], ahead=shape.ahead)
        key = shape.ahead, shape.merge
        if key not in lowered:
            lowered[key] = lower(layout, moves, events[shape.ahead], limits, by_way=shape.ahead, merge=shape.merge)
        works = lowered[key]
        assign_channels(works, shape, needed, one_sided=limits.one_sided)
        gpus = [
            GpuPlan(w.rank, *layout.counts(w.rank), w.scratch, make_blocks(w, shape, one_sided=limits.one_sided))
            for w in works
        ]
        plan = Plan(layout, protocol, tuple(gpus))
        excess = exceeded(plan, limits)
        if not excess:
            return plan
        if any(e.limit in _CROWDED for e in excess):  # shorter lanes only mean more of these
            crowded.add(replace(shape, lane=0))
        if not least or _badness(excess) < _badness(least):
            least = excess
    worst = max(least, key=lambda e: e.need / max(e.most, 1))
    raise InputError(f"{limits.target} cannot hold this schedule: {worst}; {_advice(schedule, limits, worst)}")


def _shapes(limits: Limits) -> list[Shape]:
    """What to try, in this order."""
    sixteenths = (6, 4, 3, 2, 1) if limits.one_sided else (12, 8, 6, 4, 3, 2)
    lanes = (0, *(limits.steps * share // 16 for share in sixteenths))
    fuses = "rcs" in limits.instructions
    apart = [Shape(lane=lane, ahead=True) for lane in lanes]
    merged = [Shape(merge=True, lane=lane, ahead=True) for lane in lanes]
    fewer = [Shape(merge=True, lane=lane) for lane in lanes if not limits.one_sided]
    shared = [Shape(merge=True, lane=lane, share=True, fuse=fuses, ahead=limits.one_sided) for lane in lanes]
    return [*apart, *merged, *fewer, *shared]


def num_steps(block: Block, limits: Limits) -> int:
    """Steps in the file: with what carries further waits, or with all operations of a one-sided runtime."""
    if limits.one_sided:
        return count_operations(block)
    return sum(max(1, len(step.waits)) for step in block.steps)


def exceeded(plan: Plan, limits: Limits) -> list[Excess]:
    """Every limit that the plan exceeds, by its worst place."""
    found: dict[str, Excess] = {}

    def most(limit: str, need: int, allowed: int, where: str) -> None:
        if need > allowed and (limit not in found or found[limit].need < need):
            found[limit] = Excess(limit, need, allowed, where)

    most("channels", plan.channels, limits.channels, "")
    for gpu in plan.gpus:
        where = f"gpu {gpu.rank}"
        steps = [num_steps(block, limits) for block in gpu.blocks]
        most("threadblocks per gpu", len(gpu.blocks), limits.blocks, where)
        nodes = 1 + len(plan.gpus) + len(gpu.blocks) + sum(steps)
        most("XML nodes", nodes, limits.nodes, where)
        most("chunks of a buffer", max(gpu.input, gpu.output, gpu.scratch), limits.index, where)
        sends = Counter(block.channel for block in gpu.blocks if block.send >= 0)
        receives = Counter(block.channel for block in gpu.blocks if block.recv >= 0)
        for way, counted in (("send", sends), ("receive", receives)):
            most(f"{way} threadblocks per channel", max(counted.values(), default=0), limits.blocks_per_channel, where)
        for number, (block, count) in enumerate(zip(gpu.blocks, steps, strict=True)):
            most("steps per threadblock", count, limits.steps, f"{where}, threadblock {number}")
            waits = max((b for step in block.steps for b, _ in step.waits), default=0)
            most("threadblock to wait for", waits, limits.waits - 1, f"{where}, threadblock {number}")
    return list(found.values())


def _badness(excess: list[Excess]) -> float:
    return max(e.need / max(e.most, 1) for e in excess)


def _advice(schedule: Schedule, limits: Limits, worst: Excess) -> str:
    pieces = schedule.demand.pieces
    if pieces > 1:
        fit = max(1, int(pieces * worst.most / worst.need))
        return f"synthesize with fewer chunks, such as --chunks {fit}"
    if limits.target in ("executor", "rccl") and worst.limit == "steps per threadblock":
        return "export to msccl, which has 256 steps, or with fewer --instances"
    return "export with fewer --instances, or synthesize for fewer gpus"
