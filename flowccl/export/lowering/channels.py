"""The channels of connections: every step has one, the same at both ends."""

from collections import Counter, defaultdict

from flowccl.export.lowering.drafts import SENDS, SWITCH_ROUTE, GpuDrafts, Lane
from flowccl.export.lowering.queues import parts_of_queues
from flowccl.export.lowering.threadblocks import LoweringStrategy, Splits

MOST_PEERS = 32  # sending threadblocks of one channel; more peers use further channels


def assign_channels(
    gpu_drafts: list[GpuDrafts],
    strategy: LoweringStrategy,
    needed: dict[tuple[int, int, int], int],
    splits: Splits,
    *,
    one_sided: bool,
) -> None:
    """Assign a channel to every step: the same at both ends; connections are spread over channels as `splits` says.

    `needed` is the number of channels of each (src, dst, route) with which senders do not wait for receivers; a
    one-sided runtime needs one. Each threadblock that sends a part of a queue has channels of its own.
    """
    sends = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s"]
    queued = parts_of_queues(gpu_drafts, splits) if strategy.queues else {}
    blocks: dict[tuple[int, Lane], list[int]] = defaultdict(list)  # those that send a connection of a queue
    for draft in sends:
        if id(draft) in queued and queued[id(draft)][2] not in blocks[draft.rank, draft.lane]:
            blocks[draft.rank, draft.lane].append(queued[id(draft)][2])
    parts: dict[tuple[int, Lane], int] = {}
    for (rank, lane), count in Counter((draft.rank, draft.lane) for draft in sends).items():
        ahead = needed[rank, lane[1], lane[2]] if strategy.ahead and not one_sided else 1
        spread = min(count, max(splits.get((rank, *lane[1:]), 1), ahead))
        parts[rank, lane] = len(blocks[rank, lane]) or spread
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
        place = blocks[key].index(queued[id(draft)][2]) if id(draft) in queued else seen[key] % parts[key]
        part, seen[key] = first[key] + place, seen[key] + 1
        distance = (peer - draft.rank) % len(gpu_drafts) - 1
        draft.channel = (instance * width + part) * rounds + distance // MOST_PEERS
        assert draft.partner is not None
        draft.partner.channel = draft.channel
    _assign_group_channels(gpu_drafts, splits, 1 + max((draft.channel for draft in sends), default=-1))
    for gpu in gpu_drafts:
        last: dict[Lane, int] = {}
        for draft in gpu.drafts:
            if draft.kind == "release":
                assert draft.partner is not None
                draft.channel = draft.partner.channel
                continue
            if draft.kind not in (*SENDS, "r", "rrc") and draft.lane[0] != "copy":
                draft.channel = last[draft.lane]
            elif draft.kind == "cpy":
                draft.channel = draft.lane[3] * width * rounds
            last[draft.lane] = draft.channel


def _assign_group_channels(gpu_drafts: list[GpuDrafts], splits: Splits, first: int) -> None:
    """Assign channels from `first` on to the operations of switches, spread over channels as `splits` says."""
    issued = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.partners]
    parts: dict[tuple[int, int], int] = {}
    for (rank, instance), count in Counter((draft.rank, draft.lane[3]) for draft in issued).items():
        parts[rank, instance] = min(count, splits.get((rank, -1, SWITCH_ROUTE, instance), 1))
    most = max(parts.values(), default=1)
    seen: Counter[tuple[int, int]] = Counter()
    for draft in issued:
        key = draft.rank, draft.lane[3]
        draft.channel = first + draft.lane[3] * most + seen[key] % parts[key]
        seen[key] += 1
        for receive in draft.partners:
            receive.channel = draft.channel
