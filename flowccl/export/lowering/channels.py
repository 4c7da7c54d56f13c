"""The channels of connections: every step has one, the same at both ends; and counts of steps, to refuse too many."""

from collections import Counter, defaultdict

from flowccl.export.lowering.drafts import GpuSteps, Lane, LoweringStrategy, Splits
from flowccl.export.lowering.moves import Move
from flowccl.runtimes.limits import Excess, RuntimeLimits

MOST_PEERS = 32  # sending threadblocks of one channel; more peers use further channels


def assign_channels(
    gpu_drafts: list[GpuSteps], strategy: LoweringStrategy, needed: dict[tuple[int, int, int], int], splits: Splits
) -> None:
    """Assign a channel to every step: the same at both ends; connections are spread over channels as `splits` says.

    `needed` is the number of channels of each (src, dst, route) with which senders do not wait for receivers.
    """
    sends = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s"]
    parts: dict[tuple[int, Lane], int] = {}
    for (rank, lane), count in Counter((draft.rank, draft.lane) for draft in sends).items():
        ahead = needed[rank, lane[1], lane[2]] if strategy.ahead else 1
        parts[rank, lane] = min(count, max(splits.get((rank, *lane[1:]), 1), ahead))
    first: dict[tuple[int, Lane], int] = {}
    used: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank, lane in sorted(parts):
        first[rank, lane] = used[rank, lane[1], lane[3]]
        used[rank, lane[1], lane[3]] += parts[rank, lane]
    width = max(used.values(), default=1)
    rounds = -(-(len(gpu_drafts) - 1) // MOST_PEERS)  # channels needed to keep the peers of each within MOST_PEERS
    seen: dict[tuple[int, Lane], int] = defaultdict(int)
    for draft in sends:
        key = (draft.rank, draft.lane)
        _, peer, _, instance = draft.lane
        part, seen[key] = first[key] + seen[key] % parts[key], seen[key] + 1
        distance = (peer - draft.rank) % len(gpu_drafts) - 1
        draft.channel = (instance * width + part) * rounds + distance // MOST_PEERS
        assert draft.partner is not None
        draft.partner.channel = draft.channel
    for gpu in gpu_drafts:
        last: dict[Lane, int] = {}
        for draft in gpu.drafts:
            if draft.kind not in ("s", "r", "rrc") and draft.lane[0] != "copy":
                draft.channel = last[draft.lane]
            elif draft.kind == "cpy":
                draft.channel = draft.lane[3] * width * rounds
            last[draft.lane] = draft.channel


def count_moves(moves: list[Move], instances: int) -> dict[int, tuple[int, int]]:
    """Return the sends and receives of every GPU, before any lowering; the chunks of one message count once."""
    alone = [move for move in moves if move.message < 0]
    joint = {(move.src, move.dst, move.route, move.message) for move in moves if move.message >= 0}
    sends = Counter(move.src for move in alone) + Counter(src for src, *_ in joint)
    receives = Counter(move.dst for move in alone) + Counter(dst for _, dst, *_ in joint)
    return {rank: (sends[rank] * instances, receives[rank] * instances) for rank in sends | receives}


def count_drafts(gpu_drafts: list[GpuSteps]) -> dict[int, tuple[int, int]]:
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


def least_splits(gpu_drafts: list[GpuSteps], limits: RuntimeLimits) -> Splits:
    """Return the number of channels that the sends of each connection need at least."""
    sends = Counter((draft.rank, *draft.lane[1:]) for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s")
    least = {connection: -(-count // limits.steps) for connection, count in sends.items()}
    return {connection: channels for connection, channels in least.items() if channels > 1}
