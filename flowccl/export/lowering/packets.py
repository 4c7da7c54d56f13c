"""Packets: data and flag in one word, written to the receiver's scratch.

Every receive has packets of its own there. A sender needs no permission, and a receiver no signal: it reads a packet
until it has the flag of this call. It copies the data to its place or reduces it. What it only sends on stays in the
packets, and is sent from there. At the end of a call, a receiver tells the sender that it has read its packets, so that
the next call may write them.
"""

from collections import defaultdict

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import Draft

PACKET_KINDS = {"r": "relay", "s": "forward"}
"""The kinds of receives that leave data in their packets, and of sends from there."""


def forwarded(drafts: list[Draft]) -> set[int]:
    """Return the receives whose data is only sent on, and these sends, of one GPU, by the ids of the drafts."""
    users: dict[BufferSlot, list[Draft]] = defaultdict(list)
    for draft in drafts:
        for slot in {*draft.reads(), *draft.writes()}:
            users[slot].append(draft)
    stay = {slot for slot, found in users.items() if slot[0] == "s" and _is_relay(found)}
    while True:  # a step on several chunks stays only with all of them
        touched = [draft for draft in drafts if not stay.isdisjoint(_moved(draft))]
        left = {slot for draft in touched if not stay.issuperset(_moved(draft)) for slot in _moved(draft)}
        if stay.isdisjoint(left):
            return {id(draft) for draft in touched}
        stay -= left


def _is_relay(users: list[Draft]) -> bool:
    """Whether one receive writes a slot and only sends read it."""
    return users[0].kind == "r" and all(draft.kind == "s" for draft in users[1:])


def _moved(draft: Draft) -> list[BufferSlot]:
    return draft.reads() if draft.kind == "s" else draft.writes()


def release_packets(rank: int, drafts: list[Draft], stay: set[int]) -> list[Draft]:
    """Return the last steps of a threadblock: tell the sender that its packets are read, wait for the receiver."""

    def make(kind: str, frees: list[BufferSlot]) -> Draft:
        return Draft(kind, rank, ("", -1, 0, 0), -1, ("s", 0), ("s", 0), 0, frees=tuple(frees))

    receives = [draft for draft in drafts if draft.kind in ("r", "rrc")]
    relayed = [slot for draft in receives if id(draft) in stay for slot in draft.writes()]
    added = [make("release", relayed)] if receives else []
    return [*added, make("await-release", [])] if any(draft.kind == "s" for draft in drafts) else added
