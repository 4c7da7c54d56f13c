"""Stage 3: which chunks travel together (TACCL section 4.1, appendix A.3). docs/methods/taccl.md."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.taccl.send_order import Layout
from flowccl.solver import ProgramBuilder, Solution, SolverOptions, solve

Joined = NDArray[np.bool_]


def quick_joints(layout: Layout, over: Callable[[], bool]) -> Joined:
    """Joints by trial: all, groups of equal size, then one by one while the finish gets earlier."""
    count = len(layout.joint)
    best = np.zeros(count, dtype=np.bool_)
    least = _worth(layout, best)
    for joined in _groups(layout):
        if over():
            break
        worth = _worth(layout, joined)
        if worth < least:
            best, least = joined, worth
    helped = True
    while helped and not over():
        helped = False
        for j in range(count):
            if over():
                break
            joined = best.copy()
            joined[j] = not joined[j]
            worth = _worth(layout, joined)
            if worth < least:
                best, least, helped = joined, worth, True
    return best


def _worth(layout: Layout, joined: Joined) -> tuple[int, int]:
    """The finish, then how late everything starts."""
    start, finish = layout.starts(joined)
    return finish, int(start.sum())


def _groups(layout: Layout) -> Iterator[Joined]:
    """All joints, and on every arc messages of 2, 3, 4, ... sends; so too on the slowest arcs alone."""
    if not len(layout.joint):
        return
    arc = layout.arc_of_joint
    place = np.zeros(len(arc), dtype=np.int64)
    for a in np.unique(arc).tolist():
        place[arc == a] = np.arange(int((arc == a).sum()))
    overhead = np.array(
        [layout.sends.logical.topology.link_overhead_ps[list(_links(layout, a))].max() for a in arc.tolist()]
    )
    for chosen in (overhead >= 0, overhead == overhead.max()):
        yield chosen
        for size in (2, 3, 4, 8, 16):
            yield chosen & (place % size != size - 1)


def _links(layout: Layout, arc: int) -> tuple[int, ...]:
    return layout.sends.logical.routes.links(arc)


def contiguity_encoding(
    layout: Layout, known: Joined, options: SolverOptions, solver: str
) -> tuple[Joined, Solution | None]:
    """The best joints, and what the solver said; `known` are joints to start from."""
    if not len(layout.joint):
        return known, None
    sends, joint = layout.sends, layout.joint
    first, second = joint[:, 0], joint[:, 1]
    start_known, finish = layout.starts(known)
    size = sends.demand.chunk_bytes[sends.chunk] / float(sends.demand.chunk_bytes.max())
    until = layout.until_hold_ps / finish
    apart = layout.held_ps(np.arange(len(sends))) / finish
    joins = np.unique(joint)
    free = np.zeros(len(sends), dtype=np.bool_)
    free[joins] = True

    model = ProgramBuilder()
    begin = model.variables("begin", (len(sends),), upper=1.0)
    held = model.variables("held", (len(sends),), lower=apart, upper=np.where(free, 1.0, apart))
    bytes_ = model.variables("bytes", (len(sends),), lower=size, upper=float(len(sends)), where=free)
    together = model.variables("together", (len(joint),), upper=1.0, integer=True)
    last = model.variables("finish", (), upper=1.0, cost=1.0)

    # A send starts when what it carries has arrived.
    came = model.rows("arrived", sends.before.shape, lower=until[sends.before])
    came.add(begin[sends.after]).add(begin[sends.before], times=-1.0).add(held[sends.before], times=-1.0)

    # Neighbours on a link: one after the other, unless they travel together.
    shift = (layout.earlier_off_ps - layout.later_off_ps) / finish
    place = {(int(a), int(b)): j for j, (a, b) in enumerate(joint.tolist())}
    pairs = list(zip(layout.earlier.tolist(), layout.later.tolist(), strict=True))
    which = np.array([place.get(pair, -1) for pair in pairs], dtype=np.int64)
    loose = np.flatnonzero(which >= 0)
    turn = model.rows("one after the other", (len(pairs),), lower=shift)
    turn.add(begin[layout.later]).add(begin[layout.earlier], times=-1.0).add(held[layout.earlier], times=-1.0)
    turn.add_at(loose, together[which[loose]], times=2.0)

    # Together: same start, same hold, and the bytes add up.
    for name, block in (("start together", begin), ("end together", held)):
        for sign in (1.0, -1.0):
            rows = model.rows(name, (len(joint),), upper=1.0).add(together)
            rows.add(block[second], times=sign).add(block[first], times=-sign)
    most = float(len(sends))
    total = model.rows("bytes together", (len(joint),), lower=size[second] - most)
    total.add(bytes_[second]).add(bytes_[first], times=-1.0).add(together, times=-most)

    # A hold is at least the setup and the bytes of each link, and the bytes at what limits leave.
    for send, fixed, per_byte in _holds(layout, joins):
        model.rows("hold", (len(send),), lower=fixed / finish).add(held[send]).add(
            bytes_[send], times=-per_byte / finish
        )
    model.rows("finish", (len(sends),), lower=until).add(last).add(begin, times=-1.0).add(held, times=-1.0)

    built = model.build()
    leader = layout.messages(known)
    sums = np.zeros(len(sends))
    for i in np.lexsort((np.arange(len(sends)), start_known)).tolist():
        sums[i] = size[i]
    for a, b in joint[known].tolist():
        sums[b] = sums[a] + size[b]
    hold_known = layout.held_ps(leader) / finish
    blocks = ((begin, start_known / finish), (held, hold_known), (bytes_, np.where(free, sums, 0.0)))
    point = built.point(*blocks, (together, known.astype(np.float64)), (last, np.asarray(1.0)))
    solution = solve(built, replace(options, start=point), solver)
    if not solution.has_point:
        return known, solution
    found = np.asarray(solution.value(together) > 0.5)
    return (found if layout.starts(found)[1] < finish else known), solution


def _holds(
    layout: Layout, joins: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Per place of a link in its arc: sends, setup in ps, and ps per largest chunk of bytes."""
    topology, unit = layout.sends.logical.topology, float(layout.sends.demand.chunk_bytes.max())
    rows: list[tuple[int, float, float]] = []
    for i in joins.tolist():
        for link in _links(layout, int(layout.sends.arc[i])):
            GBps = topology.link_GBps[link]
            rows.append((i, float(topology.link_overhead_ps[link]), unit * 1000.0 / GBps))
            shares = [limit.bandwidth_GBps for limit in topology.limits if link in limit.links]
            rows += [(i, 0.0, unit * 1000.0 / share) for share in shares]
    table = np.array(rows)
    return [(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])]
