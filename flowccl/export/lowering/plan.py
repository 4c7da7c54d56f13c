"""Execution plans: for every GPU, the threadblocks that a runtime runs, with their steps.

schedule -> moves (moves.py) -> steps on buffers (lower.py) -> threadblocks and dependencies (threadblocks.py) -> plan
"""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.export.lowering.buffers import BufferLayout, layout_of
from flowccl.export.lowering.channels import assign_channels, count_drafts, count_moves, least_splits, too_many_steps
from flowccl.export.lowering.drafts import Connection, GpuSteps, LoweringStrategy, Splits
from flowccl.export.lowering.lower import lower
from flowccl.export.lowering.moves import Event, Move, channels_needed, moves_of, order_events
from flowccl.export.lowering.threadblocks import make_blocks
from flowccl.runtimes.limits import FIFO, Excess, RuntimeLimits, check_collective, check_protocol
from flowccl.schedule.schedule import Schedule

MAX_INSTANCES = 64
_CROWDED = ("channels", "threadblocks per gpu", "threadblock to wait for")


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """The threadblocks of all GPUs, for one buffer layout."""

    layout: BufferLayout
    gpus: list[GpuSteps]

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 + max((block.channel for gpu in self.gpus for block in gpu.blocks), default=0)


def check_instances(instances: int) -> None:
    """Raise InputError if a chunk cannot be divided into that many parts."""
    if not 1 <= instances <= MAX_INSTANCES:
        raise InputError(f"instances must be 1 to {MAX_INSTANCES}, got {instances}")


def make_plan(
    schedule: Schedule,
    limits: RuntimeLimits,
    *,
    inplace: bool = False,
    instances: int = 1,
    protocol: str = "Simple",
    sms: int | None = None,
) -> ExecutionPlan:
    """Return the plan of a schedule for a target, within the target's limits and on GPUs with `sms` SMs.

    If a limit is exceeded, busy connections are spread over more channels; next, contiguous chunks are merged; last,
    receives and sends share threadblocks and are fused into one instruction if the target has it. Strategies that cost
    the least time come first. If no strategy fits, InputError names the limit, the need and a chunk
    count that would fit.
    """
    check_collective(limits, schedule.demand.collective)
    check_protocol(limits, protocol)
    check_instances(instances)
    if sms is not None:  # all threadblocks must be resident at once, and each of them fills an SM
        limits = replace(limits, blocks=min(limits.blocks, sms))
    layout = layout_of(schedule.demand, instances, inplace)
    _check_peers(schedule, layout, limits)
    moves = _moves(schedule, limits)
    needed = channels_needed(moves, FIFO[protocol])
    events: dict[bool, list[Event]] = {}
    lowered: dict[tuple[bool, bool], list[GpuSteps]] = {}
    least: list[Excess] = []
    counted = count_moves(moves, layout.instances)
    for strategy in _strategies(limits):
        excess = [] if strategy.merge else too_many_steps(counted, strategy, limits)
        key = strategy.ahead, strategy.merge
        if not excess and key not in lowered:
            if strategy.ahead not in events:
                events[strategy.ahead] = order_events(moves, FIFO[protocol], ahead=strategy.ahead)
            lowered[key] = lower(
                layout, moves, events[strategy.ahead], limits, by_route=strategy.ahead, merge=strategy.merge
            )
        excess = excess or too_many_steps(count_drafts(lowered[key]), strategy, limits)
        if not excess:
            plan = ExecutionPlan(layout, lowered[key])
            excess = _split(plan, strategy, needed, limits)
        if not excess:
            return plan
        if not least or _badness(excess) < _badness(least):
            least = excess
    worst = max(least, key=lambda e: e.need / max(e.most, 1))
    raise InputError(f"{limits.target} cannot run this schedule: {worst}; {_advice(schedule.demand, limits, worst)}")


def _moves(schedule: Schedule, limits: RuntimeLimits) -> list[Move]:
    """Return the moves of a schedule in the order of their starts."""
    moves = moves_of(schedule, limits.target)
    first: dict[int, int] = {}  # the first transfer of every message, whose chunks stay in order
    for move in moves:
        if move.message >= 0:
            first[move.message] = min(first.get(move.message, move.transfer), move.transfer)
    return sorted(moves, key=lambda move: (move.start_ps, first.get(move.message, move.transfer), move.dst, move.chunk))


def _check_peers(schedule: Schedule, layout: BufferLayout, limits: RuntimeLimits) -> None:
    """Raise InputError if no strategy can fit: every peer needs a threadblock, and every chunk a place in a buffer.

    Peers are counted from whole arrays, before anything is lowered.
    """
    timing, gpus = schedule.timing, schedule.topology.num_gpus
    root = np.zeros(len(schedule), dtype=np.int64)
    root[timing.root_transfer] = timing.root_node
    src, dst = root[timing.end_transfer], timing.end_node.astype(np.int64)
    between = np.unique(src * len(schedule.topology.nodes) + dst)
    src, dst = between // len(schedule.topology.nodes), between % len(schedule.topology.nodes)
    separate = (src < gpus) & (dst < gpus) & (src != dst)
    excess = [Excess("chunks of a buffer", layout.chunks, limits.index)]
    for direction, ranks in (("send to", src[separate]), ("receive from", dst[separate])):
        for rank, peers in enumerate(np.bincount(ranks).tolist()):
            where = f"gpu {rank}, threadblocks that {direction} its peers"
            excess.append(Excess("threadblocks per gpu", peers * layout.instances, limits.blocks, where))
    worst = max(excess, key=lambda e: e.need / e.most)
    if worst.need > worst.most:
        raise InputError(f"{limits.target} cannot run this schedule: {worst}; {_advice(layout.demand, limits, worst)}")


def _split(
    plan: ExecutionPlan, strategy: LoweringStrategy, needed: dict[tuple[int, int, int], int], limits: RuntimeLimits
) -> list[Excess]:
    """Make the threadblocks of a strategy; return the limits that they exceed.

    Connections whose threadblock has too many steps are spread over more channels until all fit, or until there are too
    many channels or threadblocks.
    """
    splits: Splits = least_splits(plan.gpus, limits)
    while True:
        assign_channels(plan.gpus, strategy, needed, splits)
        for gpu in plan.gpus:
            make_blocks(gpu, strategy, splits)
        excess = exceeded_limits(plan, limits)
        if not any(e.limit == "steps per threadblock" for e in excess) or any(e.limit in _CROWDED for e in excess):
            return excess
        more = _more_splits(plan, splits, limits)
        if more == splits:
            return excess
        splits = more


def _more_splits(plan: ExecutionPlan, splits: Splits, limits: RuntimeLimits) -> Splits:
    """Return splits with more channels for the connections of threadblocks that have too many steps."""
    number: Counter[Connection] = Counter()  # threadblocks of every connection at one of its ends
    ends: Counter[Connection] = Counter()  # GPUs at which every connection has threadblocks
    steps: Counter[Connection] = Counter()  # drafts of every connection
    factor: dict[Connection, float] = {}
    for gpu in plan.gpus:
        for block in gpu.blocks:
            filled = block.num_steps / limits.steps
            for connection in block.connections:
                number[connection] += 1
                ends[connection] = 2 if connection[1] >= 0 else 1
                steps[connection] += len(block.steps)
                if filled > 1:
                    factor[connection] = max(factor.get(connection, 1.0), filled)
    result = dict(splits)
    for connection, times in factor.items():
        present = max(1, number[connection] // ends[connection])
        result[connection] = min(
            max(present + 1, ceil(present * times)), max(splits.get(connection, 1), steps[connection])
        )
    return result


def _strategies(limits: RuntimeLimits) -> list[LoweringStrategy]:
    """Return the strategies to try, in order."""
    fuses = "rcs" in limits.instructions
    return [
        LoweringStrategy(ahead=True),
        LoweringStrategy(merge=True, ahead=True),
        LoweringStrategy(merge=True),
        LoweringStrategy(merge=True, share=True, fuse=fuses),
    ]


def exceeded_limits(plan: ExecutionPlan, limits: RuntimeLimits) -> list[Excess]:
    """Return every limit that the plan exceeds, each at its worst place."""
    found: dict[str, Excess] = {}

    def most(limit: str, need: int, allowed: int, where: str) -> None:
        if need > allowed and (limit not in found or found[limit].need < need):
            found[limit] = Excess(limit, need, allowed, where)

    most("channels", plan.channels, limits.channels, "")
    for gpu in plan.gpus:
        where = f"gpu {gpu.rank}"
        steps = [block.num_steps for block in gpu.blocks]
        blocks = max(len(gpu.blocks), -(-sum(steps) // limits.steps))  # spreading steps over blocks never makes fewer
        most("threadblocks per gpu", blocks, limits.blocks, where)
        nodes = 1 + len(plan.gpus) + len(gpu.blocks) + sum(steps)
        most("XML nodes", nodes, limits.nodes, where)
        most("chunks of a buffer", max(*plan.layout.counts(gpu.rank), gpu.scratch), limits.index, where)
        sends = Counter(block.channel for block in gpu.blocks if block.send >= 0)
        receives = Counter(block.channel for block in gpu.blocks if block.recv >= 0)
        for direction, counted in (("send", sends), ("receive", receives)):
            most(
                f"{direction} threadblocks per channel",
                max(counted.values(), default=0),
                limits.blocks_per_channel,
                where,
            )
        for number, (block, count) in enumerate(zip(gpu.blocks, steps, strict=True)):
            most("steps per threadblock", count, limits.steps, f"{where}, threadblock {number}")
            waits = max((b for step in block.steps for b, _ in step.waits), default=0)
            most("threadblock to wait for", waits, limits.waits - 1, f"{where}, threadblock {number}")
    return list(found.values())


def _badness(excess: list[Excess]) -> float:
    return max(e.need / max(e.most, 1) for e in excess)


def _advice(demand: Demand, limits: RuntimeLimits, worst: Excess) -> str:
    if worst.limit == "threadblocks per gpu":
        resident = "all threadblocks must be resident at once, one on each SM"
        return (
            f"{resident}: synthesize with --for {limits.target}, or export with --allow-oversubscribed at your own risk"
        )
    if demand.pieces > 1:
        fit = max(1, int(demand.pieces * worst.most / worst.need))
        return f"synthesize with fewer chunks, such as --chunks {fit}, or with --for {limits.target}"
    if limits.target in ("executor", "rccl") and worst.limit == "steps per threadblock":
        return "export to msccl, which has 256 steps, or with fewer --instances"
    return "export with fewer --instances, or synthesize for fewer gpus"
