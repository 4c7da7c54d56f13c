"""Fewer, larger steps: neighbours on a connection that move neighbouring chunks become one step with a count."""

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowccl.export.lowering.buffers import Cell
    from flowccl.export.lowering.lower import Draft

_Touches = dict[tuple[int, "Cell"], list[tuple["Draft", bool]]]


def merge_contiguous(drafts: "list[Draft]", most: int, *, only_messages: bool = False) -> "list[Draft]":
    """The steps with as many merged as can be, of one message or any. The merged pair takes the place of the later one.

    From the last step to the first: once what follows a chunk's arrival has been merged, the arrivals can be too.
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
        apart = later is None or (only_messages and not draft.message == later.message >= 0)
        if later is None or apart or not _fits(draft, later, most, touches, follower):
            head[lane] = draft
            continue
        for old, new in _pairs(draft, later):
            for rank_cell in _rank_cells(old):
                touches[rank_cell] = [(new if d is old else d, w) for d, w in touches[rank_cell]]
            new.src, new.dst = min(old.src, new.src), min(old.dst, new.dst)
            new.count += old.count
            gone.add(id(old))
    return [draft for draft in drafts if id(draft) not in gone]


def _pairs(draft: "Draft", later: "Draft") -> "list[tuple[Draft, Draft]]":
    assert draft.partner is not None
    assert later.partner is not None
    return [(draft, later), (draft.partner, later.partner)]


def _rank_cells(draft: "Draft") -> "set[tuple[int, Cell]]":
    return {(draft.rank, cell) for cell in (*draft.reads(), *draft.writes())}


def _touches(drafts: "list[Draft]") -> _Touches:
    touches: _Touches = defaultdict(list)
    for draft in drafts:
        written = set(draft.writes())
        for cell in {*draft.reads(), *written}:
            touches[draft.rank, cell].append((draft, cell in written))
    return touches


def _followers(drafts: "list[Draft]") -> "dict[int, Draft]":
    """The next step of the same lane, by the id of each step."""
    last: dict[tuple[int, object], Draft] = {}
    follower = {}
    for draft in drafts:
        before = last.get((draft.rank, draft.lane))
        if before is not None:
            follower[id(before)] = draft
        last[draft.rank, draft.lane] = draft
    return follower


def _fits(draft: "Draft", later: "Draft", most: int, touches: _Touches, follower: "dict[int, Draft]") -> bool:
    """Whether two sends, one right after the other on their connection, can be one, and their receives too."""
    (_, _), (receive, received_later) = _pairs(draft, later)
    if draft.count + later.count > most or receive.kind != received_later.kind or draft.early or later.early:
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
    writes_between = _between(draft, later, touches, writes_only=True)
    return not writes_between and not _between(receive, received_later, touches, writes_only=False)


def _beside(a: "Draft", b: "Draft") -> bool:
    """Whether the cells of two steps follow each other, in either order."""
    for first, second in ((a.src, b.src), (a.dst, b.dst)):
        if first[0] != second[0]:
            return False
        if first[1] + a.count != second[1] and second[1] + b.count != first[1]:
            return False
    return True


def _between(a: "Draft", b: "Draft", touches: _Touches, *, writes_only: bool) -> bool:
    """Whether another step touches what `a` touches after `a` and before `b`."""
    return any(
        a.at < other.at < b.at and (wrote or not writes_only)
        for rank_cell in _rank_cells(a)
        for other, wrote in touches[rank_cell]
        if other is not a and other is not b
    )
