"""Counting of sends and receives, to refuse what no plan could hold before threadblocks are filled."""

from collections import Counter

from flowccl.export.lowering.drafts import GpuDrafts
from flowccl.export.lowering.moves import Move
from flowccl.export.lowering.threadblocks import LoweringStrategy, Splits
from flowccl.runtimes.limits import Excess, RuntimeLimits


def count_moves(moves: list[Move], instances: int) -> dict[int, tuple[int, int]]:
    """Return the sends and receives of every GPU, before any lowering; the chunks of one message count once."""
    alone = [move for move in moves if move.message < 0]
    joint = {(move.src, move.dst, move.route, move.message) for move in moves if move.message >= 0}
    sends = Counter(move.src for move in alone) + Counter(src for src, *_ in joint)
    receives = Counter(move.dst for move in alone) + Counter(dst for _, dst, *_ in joint)
    return {rank: (sends[rank] * instances, receives[rank] * instances) for rank in sends | receives}


def count_drafts(gpu_drafts: list[GpuDrafts]) -> dict[int, tuple[int, int]]:
    """Return the sends of every GPU after lowering, and its receives, reductions and copies."""
    kinds = {gpu.rank: Counter(draft.kind for draft in gpu.drafts) for gpu in gpu_drafts}
    return {rank: (count["s"], sum(count[kind] for kind in ("r", "rrc", "re", "cpy"))) for rank, count in kinds.items()}


def too_many_steps(
    counted: dict[int, tuple[int, int]], strategy: LoweringStrategy, limits: RuntimeLimits
) -> list[Excess]:
    """Return the limits that the sends and other steps of the busiest GPU exceed, whatever its threadblocks are.

    A fused step receives and sends.
    """
    steps = {
        rank: max(sends, receives) if strategy.fuse else sends + receives for rank, (sends, receives) in counted.items()
    }
    rank = max(steps, key=steps.__getitem__, default=-1)
    need, where = steps.get(rank, 0), f"gpu {rank}"
    excess = [
        Excess("XML nodes", need, limits.nodes, where),
        Excess("threadblocks per gpu", -(-need // limits.steps), limits.blocks, where),
    ]
    return [one for one in excess if one.need > one.most]


def least_splits(gpu_drafts: list[GpuDrafts], limits: RuntimeLimits) -> Splits:
    """Return the number of channels that the sends of each connection need at least."""
    sends = Counter((draft.rank, *draft.lane[1:]) for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s")
    least = {connection: -(-count // limits.steps) for connection, count in sends.items()}
    return {connection: channels for connection, channels in least.items() if channels > 1}
