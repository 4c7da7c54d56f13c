"""Stage 3: which chunks share a message (TACCL section 4.1, appendix A.3). See docs/methods/taccl.md."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.taccl.send_order import SendOrder
from flowccl.solver import ProgramBuilder, Solution, SolverOptions, VariableBlock, solve

MergeFlags = NDArray[np.bool_]


def quick_merges(send_order: SendOrder, over: Callable[[], bool]) -> MergeFlags:
    """Choose merges by trial: all, groups of equal size, then one by one while the completion time improves."""
    count = len(send_order.mergeable)
    best = np.zeros(count, dtype=np.bool_)
    least = _value(send_order, best)
    for merged in _groups(send_order):
        if over():
            break
        value = _value(send_order, merged)
        if value < least:
            best, least = merged, value
    helped = True
    while helped and not over():
        helped = False
        for j in range(count):
            if over():
                break
            merged = best.copy()
            merged[j] = not merged[j]
            value = _value(send_order, merged)
            if value < least:
                best, least, helped = merged, value, True
    return best


def _value(send_order: SendOrder, merged: MergeFlags) -> tuple[int, int]:
    """Completion time, then the sum of all starts."""
    start, finish = send_order.starts(merged)
    return finish, int(start.sum())


def _groups(send_order: SendOrder) -> Iterator[MergeFlags]:
    """All merges, and messages of 2, 3, 4, ...

    sends on every arc; then the same on the arcs of largest overhead only.
    """
    if not len(send_order.mergeable):
        return
    arc = send_order.mergeable_arc
    place = np.zeros(len(arc), dtype=np.int64)
    for a in np.unique(arc).tolist():
        place[arc == a] = np.arange(int((arc == a).sum()))
    overhead = np.array(
        [send_order.sends.logical.topology.link_overhead_ps[list(_links(send_order, a))].max() for a in arc.tolist()]
    )
    for chosen in (overhead >= 0, overhead == overhead.max()):
        yield chosen
        for size in (2, 3, 4, 8, 16):
            yield chosen & (place % size != size - 1)


def _links(send_order: SendOrder, arc: int) -> tuple[int, ...]:
    return send_order.sends.logical.routes.links(arc)


def contiguity_encoding(
    send_order: SendOrder, known: MergeFlags, options: SolverOptions, solver: str
) -> tuple[MergeFlags, Solution | None]:
    """Return the best merges and the solution of the solver; `known` are merges to start from."""
    if not len(send_order.mergeable):
        return known, None
    sends, mergeable = send_order.sends, send_order.mergeable
    first, second = mergeable[:, 0], mergeable[:, 1]
    start_known, finish = send_order.starts(known)
    size = sends.demand.chunk_bytes[sends.chunk] / float(sends.demand.chunk_bytes.max())
    until = send_order.after_busy_ps / finish
    alone_busy = send_order.message_busy_ps(np.arange(len(sends))) / finish
    mergeable_sends = np.unique(mergeable)
    free = np.zeros(len(sends), dtype=np.bool_)
    free[mergeable_sends] = True

    model = ProgramBuilder()
    begin = model.variables("begin", (len(sends),), upper=1.0)
    busy = model.variables("busy", (len(sends),), lower=alone_busy, upper=np.where(free, 1.0, alone_busy))
    bytes_ = model.variables("bytes", (len(sends),), lower=size, upper=float(len(sends)), where=free)
    together = model.variables("together", (len(mergeable),), upper=1.0, integer=True)
    last = model.variables("finish", (), upper=1.0, cost=1.0)

    # A send starts after its data has arrived.
    came = model.rows("arrived", sends.before.shape, lower=until[sends.before])
    came.add(begin[sends.after]).add(begin[sends.before], times=-1.0).add(busy[sends.before], times=-1.0)

    _keep_order(model, send_order, finish, begin, busy, together)

    # In one message: same start, same duration, and the sizes add up.
    for name, block in (("start together", begin), ("end together", busy)):
        for sign in (1.0, -1.0):
            rows = model.rows(name, (len(mergeable),), upper=1.0).add(together)
            rows.add(block[second], times=sign).add(block[first], times=-sign)
    most = float(len(sends))
    total = model.rows("bytes together", (len(mergeable),), lower=size[second] - most)
    total.add(bytes_[second]).add(bytes_[first], times=-1.0).add(together, times=-most)

    # A message takes at least the overhead and its bytes on each link, and its bytes at the bandwidth of limits.
    for send, fixed, per_byte in _busy_rows(send_order, mergeable_sends):
        model.rows("busy", (len(send),), lower=fixed / finish).add(busy[send]).add(
            bytes_[send], times=-per_byte / finish
        )
    model.rows("finish", (len(sends),), lower=until).add(last).add(begin, times=-1.0).add(busy, times=-1.0)

    built = model.build()
    leader = send_order.messages(known)
    message_bytes = size.copy()
    for a, b in mergeable[known].tolist():
        message_bytes[b] = message_bytes[a] + size[b]
    busy_known = send_order.message_busy_ps(leader) / finish
    blocks = ((begin, start_known / finish), (busy, busy_known), (bytes_, np.where(free, message_bytes, 0.0)))
    point = built.point(*blocks, (together, known.astype(np.float64)), (last, np.asarray(1.0)))
    solution = solve(built, replace(options, start=point), solver)
    if not solution.has_point:
        return known, solution
    found = np.asarray(solution.value(together) > 0.5)
    return (found if send_order.starts(found)[1] < finish else known), solution


def _keep_order(
    model: ProgramBuilder,
    send_order: SendOrder,
    finish: float,
    begin: VariableBlock,
    busy: VariableBlock,
    together: VariableBlock,
) -> None:
    """Consecutive sends on a link do not overlap, unless they share a message."""
    shift = (send_order.earlier_off_ps - send_order.later_off_ps) / finish
    place = {(int(a), int(b)): j for j, (a, b) in enumerate(send_order.mergeable.tolist())}
    pairs = list(zip(send_order.earlier.tolist(), send_order.later.tolist(), strict=True))
    which = np.array([place.get(pair, -1) for pair in pairs], dtype=np.int64)
    loose = np.flatnonzero(which >= 0)
    rows = model.rows("one after the other", (len(pairs),), lower=shift)
    rows.add(begin[send_order.later])
    rows.add(begin[send_order.earlier], times=-1.0)
    rows.add(busy[send_order.earlier], times=-1.0)
    rows.add_at(loose, together[which[loose]], times=2.0)


def _busy_rows(
    send_order: SendOrder, mergeable_sends: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Per link of an arc: sends, overhead in ps, and ps per size of the largest chunk."""
    topology, unit = send_order.sends.logical.topology, float(send_order.sends.demand.chunk_bytes.max())
    rows: list[tuple[int, float, float]] = []
    for i in mergeable_sends.tolist():
        for link in _links(send_order, int(send_order.sends.arc[i])):
            GBps = topology.link_GBps[link]
            rows.append((i, float(topology.link_overhead_ps[link]), unit * 1000.0 / GBps))
            limits_GBps = [limit.bandwidth_GBps for limit in topology.limits if link in limit.links]
            rows += [(i, 0.0, unit * 1000.0 / share) for share in limits_GBps]
    table = np.array(rows)
    return [(table[:, 0].astype(np.int64), table[:, 1], table[:, 2])]
