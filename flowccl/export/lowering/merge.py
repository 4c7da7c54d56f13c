"""Merging of steps: consecutive steps of a connection that move adjacent chunks become one step with a count."""

from collections import defaultdict

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import Draft

_Touches = dict[tuple[int, BufferSlot], list[tuple[Draft, bool]]]
"""For every (rank, slot) the steps that use it, and whether each of them writes it."""


def merge_contiguous(drafts: list[Draft], most: int, *, only_messages: bool = False) -> list[Draft]:
    """Return the steps after merging all possible ones, of one message or any; a merged step is at the later position.

    Steps are visited from the last to the first: once the steps after two arrivals are merged, the arrivals can be too.
    """
    if only_messages and all(draft.message < 0 for draft in drafts):
        return drafts
    touches = _touches(drafts)
    follower = _followers(drafts)
    head: dict[tuple[int, object], Draft] = {}
    gone: set[int] = set()
    for draft in reversed(drafts):
        if draft.kind != "s":
            continue
        lane = (draft.rank, draft.lane)
        later = head.get(lane)
        unrelated = later is None or (only_messages and not draft.message == later.message >= 0)
        if later is None or unrelated or not _fits(draft, later, most, touches, follower):
            head[lane] = draft
            continue
        for old, new in _pairs(draft, later):
            for rank_slot in _rank_slots(old):
                touches[rank_slot] = [(new if d is old else d, w) for d, w in touches[rank_slot]]
            new.src, new.dst = min(old.src, new.src), min(old.dst, new.dst)
            new.count += old.count
            gone.add(id(old))
    return [draft for draft in drafts if id(draft) not in gone]


def _pairs(draft: Draft, later: Draft) -> list[tuple[Draft, Draft]]:
    """Return two sends, and their receives."""
    assert draft.partner is not None
    assert later.partner is not None
    return [(draft, later), (draft.partner, later.partner)]


def _rank_slots(draft: Draft) -> set[tuple[int, BufferSlot]]:
    return {(draft.rank, slot) for slot in (*draft.reads(), *draft.writes())}


def _touches(drafts: list[Draft]) -> _Touches:
    touches: _Touches = defaultdict(list)
    for draft in drafts:
        written = set(draft.writes())
        for slot in {*draft.reads(), *written}:
            touches[draft.rank, slot].append((draft, slot in written))
    return touches


def _followers(drafts: list[Draft]) -> dict[int, Draft]:
    """Return the next step of the same lane, by the id of each step."""
    last: dict[tuple[int, object], Draft] = {}
    follower = {}
    for draft in drafts:
        before = last.get((draft.rank, draft.lane))
        if before is not None:
            follower[id(before)] = draft
        last[draft.rank, draft.lane] = draft
    return follower


def _fits(draft: Draft, later: Draft, most: int, touches: _Touches, follower: dict[int, Draft]) -> bool:
    """Whether two consecutive sends of a connection, and their receives, can be merged."""
    if draft.count + later.count > most:
        return False
    if _between(draft, later, touches, writes_only=True):
        return False
    return _receives_fit(draft, later, *_pairs(draft, later)[1], touches, follower)


def _receives_fit(
    draft: Draft, later: Draft, receive: Draft, received_later: Draft, touches: _Touches, follower: dict[int, Draft]
) -> bool:
    if receive.kind != received_later.kind:
        return False
    if not _beside(draft, later) or not _beside(receive, received_later):
        return False
    if (draft.src < later.src) != (receive.dst < received_later.dst):
        return False
    if receive.kind == "rrc" and (receive.src < received_later.src) != (receive.dst < received_later.dst):
        return False
    after = follower.get(id(receive))
    if after is None or after.kind == "re":
        return False
    return not _between(receive, received_later, touches, writes_only=False)


def _beside(a: Draft, b: Draft) -> bool:
    """Whether the slots of two steps are adjacent, in either order."""
    for first, second in ((a.src, b.src), (a.dst, b.dst)):
        if first[0] != second[0]:
            return False
        if first[1] + a.count != second[1] and second[1] + b.count != first[1]:
            return False
    return True


def _between(a: Draft, b: Draft, touches: _Touches, *, writes_only: bool) -> bool:
    """Whether another step uses the slots of `a` after `a` and before `b`."""
    return any(
        a.at < other.at < b.at and (wrote or not writes_only)
        for rank_slot in _rank_slots(a)
        for other, wrote in touches[rank_slot]
        if other is not a and other is not b
    )
