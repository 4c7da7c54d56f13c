"""Repairs symmetric schedules of whole machines where faults touch them: the exceptions of the compact form.

What all GPUs should receive and some miss comes along new trees from the GPUs that have it. What one GPU should receive
takes a detour around the faulty link: a step to a neighbour, the step that is not possible here, and the step back; or
no step back, where the rest of the path begins with the step to that neighbour. Trees and detours are chosen one after
the other by the load of links; then all transfers are scheduled together, the longest tail first.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.adapters.reversal import links_back
from flowccl.arrays import distinct, is_among, pointers
from flowccl.errors import DemandError
from flowccl.methods.symmetric.one_source import OneSource
from flowccl.methods.symmetric.repair_kernels import RoutesAround, choose_paths, grow_trees
from flowccl.schedule.compact import CompactSchedule
from flowccl.schedule.generation.generation_kernels import longest_tails
from flowccl.schedule.generation.list_scheduling import in_order, jobs_of
from flowccl.schedule.repaired import Images, RepairedPhase, broken_images, faulty_links, feeders, left_out
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes, route_shape
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

_MOST = 8_000_000  # exceptions: some 100 bytes and 10 us each, with their verification
_FEW = 16  # routes of a kind, up to which all are tried
_SAMPLES = 8  # of the routes of a kind that has more


def repaired_phase(source: OneSource, whole: CompactSchedule, topology: Topology) -> RepairedPhase:
    """The allgather or alltoall of a whole machine, repaired for one with faults; `source` is the data of GPU 0 in it.

    Raises DemandError where there would be too many exceptions, or where the faults leave no way.
    """
    repair = _Repair(source, whole, topology)
    moves = repair.detours() if whole.collective == "alltoall" else repair.trees()
    exceptions = _scheduled(moves, whole.one, topology)
    return RepairedPhase(whole, topology, exceptions, moves.owner)


def opposite_phase(phase: RepairedPhase, whole: CompactSchedule) -> RepairedPhase | None:
    """The phase on the reversed machine, whose links are those back; `whole` is that of the whole machine.

    None where the faults of a link and of the link back differ.
    """
    topology, back = phase.topology, links_back(phase.whole.topology)
    own = None if back is None else back[: len(topology.links)]
    if back is None or own is None or own.max() >= len(own):
        return None
    if any(np.any(rate != rate[own]) for rate in (topology.link_GBps, topology.link_latency_ps)):
        return None
    machine, routes = topology.reversed, phase.exceptions.routes.renamed(back)
    exceptions = replace(phase.exceptions, topology=machine, routes=routes)
    return RepairedPhase(whole, machine, exceptions, phase.owner)


@dataclass(frozen=True, eq=False)
class _Moves:
    """Transfers without times: whose data, the chunk of GPU 0's data whose image it is, links, what goes before."""

    owner: I32
    chunk: I32
    routes: Routes
    before: I64  # -1: the sender has the chunk from the start


@dataclass(frozen=True, eq=False)
class _Steps:
    """Routes between GPUs: each is the image of a route of GPU 0, from another GPU."""

    route: I64
    src: I32

    def links(self, source: OneSource) -> Routes:
        """Their links."""
        routes = source.source_routes.routes.only(self.route)
        by = np.repeat(self.src, np.diff(routes.ptr))
        return Routes(routes.ptr, source.source_routes.group.moved_links(routes.link, by))


@dataclass(frozen=True, eq=False)
class _Repair:
    source: OneSource
    whole: CompactSchedule
    topology: Topology

    @property
    def group(self) -> RegularGroup:
        return self.whole.group

    @property
    def ends(self) -> I32:
        """The GPU at the end of each route from GPU 0."""
        return self.source.source_routes.end

    @cached_property
    def faulty(self) -> NDArray[np.bool_]:
        return faulty_links(self.whole.topology, self.topology)

    @cached_property
    def chunk_bytes(self) -> int:
        return int(self.whole.one.demand.chunk_bytes.max())

    @cached_property
    def kinds(self) -> tuple[I64, list[I64]]:
        """The routes of kinds with few of them, and those of each other kind."""
        kind = self.source.source_routes.kinds(self.chunk_bytes).route_kind
        rows = [np.flatnonzero(kind == k) for k in range(int(kind.max()) + 1)]
        few = [row for row in rows if len(row) <= _FEW]
        return np.sort(np.concatenate([np.zeros(0, dtype=np.int64), *few])), [r for r in rows if len(r) > _FEW]

    def trees(self) -> _Moves:
        """New trees for all that is left out."""
        one, lost, count = self.whole.one, left_out(self.whole.one, self.group, self.faulty), len(self.group)
        _check_number(len(lost))
        chunks, gpu = len(one.demand), self.group.image(one.timing.end_node[lost.row], lost.owner)
        chunk = lost.owner * chunks + one.chunk[lost.row]
        number = np.bincount(chunk // chunks, minlength=count)
        order = np.lexsort((gpu, chunk, -number[chunk // chunks]))
        chunk, gpu = chunk[order], gpu[order]
        first = np.flatnonzero(np.append(True, chunk[1:] != chunk[:-1])) if len(chunk) else np.zeros(0, dtype=np.int64)
        hops, links = self._hops(lost, distinct(gpu.astype(np.int64)))
        done, row, before = grow_trees(hops, len(self.topology.links), np.append(first, len(chunk)), gpu)
        if not done:
            raise DemandError(f"the compact form of {self.topology.name}: no way around its faults was found")
        owner, own = np.divmod(chunk, chunks)
        return _Moves(owner.astype(np.int32), own.astype(np.int32), links.only(row), before)

    def _hops(self, lost: Images, gpus: I64) -> tuple[RoutesAround, Routes]:
        """The routes by which missing chunks may come to these GPUs: of kinds with many routes, samples.

        Also those by which GPUs in their neighbourhood should have received them: the sender of such a route is in the
        neighbourhood of a GPU that has the chunk.
        """
        few, many = self.kinds
        every, count = len(self.ends), len(self.group)
        keys = [(gpus[:, None] * every + few[None, :]).ravel()]
        for rows in many:
            turn = (gpus[:, None] + np.arange(_SAMPLES)[None, :] * (len(rows) // _SAMPLES)) % len(rows)
            keys.append((gpus[:, None] * every + rows[turn]).ravel())
            used = self.source.route[lost.row]
            crossing = np.flatnonzero(np.isin(used, rows))
            end = self.group.image(self.whole.one.timing.end_node[lost.row[crossing]], lost.owner[crossing])
            for near in (0, *self.ends[few].tolist()):
                there = self.group.image(end, np.full(len(end), near, dtype=np.int32))
                keys.append(there.astype(np.int64) * every + used[crossing])
        wanted = distinct(np.concatenate(keys))
        wanted = wanted[is_among(wanted // every, gpus)]
        dst, route = (wanted // every).astype(np.int32), wanted % every
        steps = _Steps(route, self.group.difference(dst, self.ends[route]))
        links = steps.links(self.source)
        exists = np.flatnonzero(np.logical_and.reduceat(links.link < len(self.topology.links), links.ptr[:-1]))
        links, dst, src = links.only(exists), dst[exists], steps.src[exists]
        busy, takes = self._times(links)
        out = np.argsort(src, kind="stable")
        into, out_ptr = (np.searchsorted(rows, np.arange(count + 1)) for rows in (dst, src[out]))
        return RoutesAround(src, dst, links.ptr, links.link, busy, takes, into, out_ptr, out), links

    def _times(self, routes: Routes) -> tuple[I64, I64]:
        """How long a chunk occupies the links of each route, and when it arrives at the end."""
        if not len(routes):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        last, link = routes.ptr[1:] - 1, routes.link
        GBps = np.minimum.reduceat(self.topology.link_GBps[link], routes.ptr[:-1])
        busy = np.ceil(self.chunk_bytes * 1000.0 / GBps).astype(np.int64)
        offset = route_shape(self.topology, routes).hop_offset_ps[last]
        return busy, busy + offset + self.topology.link_latency_ps[link[last]]

    def detours(self) -> _Moves:
        """New paths from where chunks cannot go on."""
        one, chosen = self.whole.one, self._first_broken()
        rest = self._rest(chosen.row)
        _check_number(len(chosen) * (rest.shape[1] + 3))
        steps = self._paths(self.source.route[chosen.row], rest)
        start = self.group.image(one.timing.root_node[chosen.row], chosen.owner)
        at = np.broadcast_to(start[:, None], steps.shape[:2]).copy()
        links, busy, takes = [], [], np.zeros(steps.shape[:2], dtype=np.int64)
        possible, senders = np.ones(steps.shape[:2], dtype=np.bool_), []
        for place in range(steps.shape[2]):
            route = steps[:, :, place]
            used = route >= 0
            row, own, more_ps = self._step(np.where(used, route, 0), at)
            row[~used] = -1
            senders.append(at.copy())
            at = np.where(used, self.group.image(at, self.ends[np.where(used, route, 0)]), at)
            possible &= ~np.any(row >= len(self.topology.links), axis=2)
            links.append(row)
            busy.append(np.broadcast_to(own[:, :, None], row.shape))
            takes += np.where(used, more_ps, 0)
        path, busy_ps = np.concatenate(links, axis=2).astype(np.int64), np.concatenate(busy, axis=2)
        best = choose_paths(len(self.topology.links), possible, path, np.ascontiguousarray(busy_ps), takes)
        if np.any(best < 0):
            raise DemandError(f"the compact form of {self.topology.name}: no way around its faults was found")
        rows = np.arange(len(best))
        return self._along(chosen, steps[rows, best], np.stack(senders, axis=2)[rows, best])

    def _along(self, chosen: Images, steps: I64, senders: I32) -> _Moves:
        """The transfers of the chosen paths."""
        path, place = np.nonzero(steps >= 0)
        same = np.append(False, path[1:] == path[:-1]) if len(path) else np.zeros(0, dtype=np.bool_)
        before = np.where(same, np.arange(len(path)) - 1, -1)
        links = _Steps(steps[path, place], senders[path, place]).links(self.source)
        chunk = self.whole.one.chunk[chosen.row[path]]
        return _Moves(chosen.owner[path].astype(np.int32), chunk, links, before)

    def _step(self, route: I64, at: I32) -> tuple[I64, I64, I64]:
        """The links of routes from these GPUs, -1 behind the last one; the time on each, and that to the end."""
        routes = self.source.source_routes.routes
        width = int(np.diff(routes.ptr).max())
        place = routes.ptr[route][..., None] + np.arange(width)
        inside = place < routes.ptr[route + 1][..., None]
        own = routes.link[np.where(inside, place, 0)]
        moved = self.group.moved_links(own, at[..., None]).astype(np.int64)
        there = inside & (moved < len(self.topology.links))
        GBps = np.where(there, self.topology.link_GBps[np.where(there, moved, 0)], np.inf).min(axis=2)
        busy = np.ceil(self.chunk_bytes * 1000.0 / GBps).astype(np.int64)
        latency = np.where(there, self.topology.link_latency_ps[np.where(there, moved, 0)], 0).sum(axis=2)
        return np.where(inside, moved, -1), busy, busy + latency

    def _paths(self, route: I32, rest: I64) -> I64:
        """The steps of all paths that are tried for chunks whose next step is `route`, and later ones `rest`.

        The first path is the given one, which is possible where a link is only slow.
        """
        few, many = self.kinds
        samples = [rows[:: len(rows) // _SAMPLES][:_SAMPLES] for rows in many]
        near = np.concatenate([few, *samples])
        back = self._back(near)
        near, back = near[back >= 0], back[back >= 0]
        steps = np.full((len(route), len(near) + 1, rest.shape[1] + 3), -1, dtype=np.int64)
        steps[:, 1:, 0], steps[:, :, 1] = near[None, :], route[:, None]
        steps[:, 1:, 2], steps[:, :, 3:] = back[None, :], rest[:, None, :]
        if rest.shape[1]:
            turned = steps[:, 1:, 0] == rest[:, None, 0]
            steps[:, 1:, 2][turned] = -1
            steps[:, 1:, 3][turned] = -1
        return steps

    def _back(self, near: I64) -> I64:
        """For each route from GPU 0 one that leads back when it is moved to its end; -1 where there is none."""
        home = self.group.difference(np.zeros(len(near), dtype=np.int32), self.ends[near])
        order = np.argsort(self.ends, kind="stable")
        place = np.minimum(np.searchsorted(self.ends[order], home), len(order) - 1)
        return np.where(self.ends[order][place] == home, order[place], -1).astype(np.int64)

    def _first_broken(self) -> Images:
        """The images that use a faulty link, of each path the first one."""
        one = self.whole.one
        broken = broken_images(one, self.group, self.faulty)
        _check_number(int((self._following[broken.row] + 3).sum()))
        key, before = broken.owner * len(one) + broken.row, feeders(one)
        again, row = np.zeros(len(broken), dtype=np.bool_), before[broken.row]
        while np.any(row >= 0):
            again |= (row >= 0) & np.isin(broken.owner * len(one) + row, key)
            row = np.where(row >= 0, before[row], -1)
        return Images(broken.owner[~again], broken.row[~again])

    @cached_property
    def _following(self) -> I64:
        """How many transfers of the same chunk follow each one on its path."""
        one = self.whole.one
        order = np.lexsort((one.start_ps, one.chunk))
        end = np.searchsorted(one.chunk[order], one.chunk, side="right")
        place = np.empty(len(one), dtype=np.int64)
        place[order] = np.arange(len(one))
        return np.asarray(end - place - 1, dtype=np.int64)

    def _rest(self, row: I64) -> I64:
        """The routes of the transfers that follow each one, -1 behind the last."""
        one = self.whole.one
        before = feeders(one)
        after = np.full(len(one), -1, dtype=np.int64)
        after[before[before >= 0]] = np.flatnonzero(before >= 0)
        columns, row = [], after[row]
        while np.any(row >= 0):
            columns.append(np.where(row >= 0, self.source.route[row], -1))
            _check_number(len(row) * len(columns))
            row = np.where(row >= 0, after[row], -1)
        return np.stack(columns, axis=1) if columns else np.zeros((len(row), 0), dtype=np.int64)


def _scheduled(moves: _Moves, one: Schedule, topology: Topology) -> Schedule:
    """The transfers, each as early as its data and links allow, the longest tail first; after the end of all others."""
    count = len(moves.chunk)
    draft = Schedule.from_links(topology, one.demand, moves.chunk, moves.routes, np.zeros(count, dtype=np.int64))
    timing = draft.timing
    fed = np.flatnonzero(moves.before >= 0)
    fed = fed[np.argsort(moves.before[fed], kind="stable")]
    ptr = np.searchsorted(moves.before[fed], np.arange(count + 1)).astype(np.int64)
    lag = timing.end_arrival_ps[moves.before[fed]]
    tail = longest_tails(_deepest_first(moves.before), ptr, fed, lag, timing.end_arrival_ps)
    hops = (draft.shape.routes.ptr, timing.hop_link, timing.hop_from_ps, timing.hop_to_ps)
    hop_ptr = pointers(np.diff(hops[0])[draft.route])
    lanes = np.arange(len(topology.links) + 1)
    start = in_order(np.argsort(-tail, kind="stable"), jobs_of((ptr, fed, lag), (hop_ptr, *hops[1:]), lanes))
    assert start is not None  # trees have no circles
    columns = draft.routes, draft.chunk, draft.route, start + one.finish_ps, draft.reduce
    return Schedule(topology, one.demand, *columns, one.method)


def _deepest_first(before: I64) -> I64:
    """The transfers, those with the most transfers before them first."""
    depth, above = np.zeros(len(before), dtype=np.int64), before.copy()
    while np.any(above >= 0):
        depth += above >= 0
        above = np.where(above >= 0, before[above], -1)
    return np.argsort(-depth, kind="stable")


def _check_number(count: int) -> None:
    if count > _MOST:
        raise DemandError(f"faults touch {count:,} transfers of the compact form, which may have {_MOST:,} exceptions")
