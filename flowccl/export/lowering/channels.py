"""The channels of connections: every step has one, the same at both ends."""

from collections import Counter, defaultdict

from flowccl.export.lowering.drafts import GpuDrafts, Lane
from flowccl.export.lowering.threadblocks import LoweringStrategy, Splits

MOST_PEERS = 32  # sending threadblocks of one channel; more peers use further channels


def assign_channels(
    gpu_drafts: list[GpuDrafts], strategy: LoweringStrategy, needed: dict[tuple[int, int, int], int], splits: Splits
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
