"""The time of a file on a machine, by an event simulation in the clock of schedules.

A step starts when everything that it waits for is complete. A send inside a host occupies its threadblock for the
overhead of a message and for its bytes, at most at the rate of a threadblock. A send over a NIC occupies the proxy
thread of its GPU for the overhead only, and its threadblock not at all. Its signal delays only the receiver. Copies,
reductions and packets that are read occupy their threadblock at the rates of the runtime's profile. Links and limits
are shared by rate: a send has one constant rate, and waits while others leave it none. Bandwidths are those at time
zero.

flowccl's own files say when the schedule starts each send, and at which rate; the runtime ignores that. A send starts
no earlier than that here, because other sends may need the link first; at another size than that of the schedule, only
the order of sends that are ready together follows it. Sends of other files start as soon as they can,
and those that start together share links evenly.

The clock starts when all GPUs have entered the call and know it of each other, and stops when the data is there: the
signals that separate calls take no time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isinf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import InputError
from flowccl.export.proof.loops import unrolled
from flowccl.export.proof.network import SimulatedNetwork, SimulatedRoute
from flowccl.export.proof.precedence import (
    Edges,
    PrecedenceGraph,
    in_threadblocks,
    named_waits,
    tokens_of,
    waits_of_tokens,
)
from flowccl.export.proof.program import RuntimeProgram
from flowccl.export.proof.steps import Bool, OneGpu, StepArrays, distinct, table_of
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.topology.topology import Topology

if TYPE_CHECKING:
    from flowccl.export.proof.event_kernels import SendKinds, SimulatedRoutes

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each step of a program begins, after its waits, and ends; and the pairs of steps (sender, receiver)."""

    begin_ps: I64
    end_ps: I64
    tokens: list[tuple[int, int]]
    finish_ps: int


def estimate_ps(
    program: RuntimeProgram,
    topology: Topology,
    size_bytes: int,
    profile: RuntimeProfile | None = None,
    one_gpu: OneGpu | None = None,
) -> int:
    """Return the finish time of a program on a machine for a buffer of `size_bytes`, as nccl-tests counts them.

    `profile` has the costs of the runtime; None: messages cost what the links of the machine say. With a `one_gpu`,
    only GPU 0 has steps, and stands for all others.
    """
    return step_times(program, topology, size_bytes, profile, one_gpu).finish_ps


def step_times(
    program: RuntimeProgram,
    topology: Topology,
    size_bytes: int,
    profile: RuntimeProfile | None = None,
    one_gpu: OneGpu | None = None,
) -> StepTimes:
    """Return when each step of a program begins and ends on a machine for a buffer of `size_bytes`."""
    if topology.num_gpus != program.num_gpus:
        machine = f"the machine {topology.name} has {topology.num_gpus}"
        raise InputError(f"the file is for {program.num_gpus} gpus, but {machine}")
    keeps = program.made_for_bytes == size_bytes
    network = SimulatedNetwork(topology, profile)
    return _Simulation(program, network, -(-size_bytes // program.chunks), keeps, one_gpu).run()


class _Simulation:
    """Brings a program and a network into the form that the compiled simulation takes."""

    def __init__(
        self,
        program: RuntimeProgram,
        network: SimulatedNetwork,
        chunk_bytes: int,
        keeps_starts: bool,
        one_gpu: OneGpu | None,
    ) -> None:
        self.program, self.network, self.keeps_starts, self.one_gpu = program, network, keeps_starts, one_gpu
        table, self.chunk_bytes = unrolled(program, table_of(program), chunk_bytes)
        self.table = table = table if one_gpu is None else one_gpu.steps(table)
        self.is_send = (table.size > 0) & ((table.sends_to >= 0) | (table.group >= 0))
        self.moves = np.diff(table.assign_ptr) > 0
        self.is_first = _first_of_messages(table, self.moves)
        self.routes: dict[SimulatedRoute, int] = {}

    def run(self) -> StepTimes:
        """Return the times of all steps."""
        from flowccl.export.proof.event_kernels import SimulatedSteps, simulate

        table, (edges, by_token, connection) = self.table, self._edges()
        graph = PrecedenceGraph.of(len(table), [edges])
        by_step = np.argsort(edges[0], kind="stable")
        first, second, connection = (column[by_step] for column in (*edges, connection))
        by_token = by_token[by_step]
        delay, last, number_ptr, number = self._delays(first, second, by_token, connection, self._entries(graph))
        kind, kinds = self._kinds()
        steps = SimulatedSteps(
            table.rank,
            kind,
            self._local_times(),
            table.start_ps,
            np.diff(graph.ptr),
            pointers(np.bincount(first, minlength=len(table))),
            second,
            delay,
            last,
            number_ptr,
            number,
        )
        routes = _route_arrays(self.network, list(self.routes))
        if self.one_gpu is not None:
            GBps = np.zeros(len(routes.GBps))
            GBps[self.one_gpu.orbit] = self.network.topology.link_GBps
            routes = routes._replace(link=self.one_gpu.orbit[routes.link], GBps=GBps)
        hops = np.diff(routes.hop_ptr).max(initial=0) * (1 + np.diff(routes.limit_ptr).max(initial=0))
        in_turn = isinf(self.network.threadblock_GBps(packets=False))  # one send fills a link: first come, first served
        size = self.program.num_gpus, int(number.max(initial=-1)) + 1, int(hops)
        begin, end, completed = simulate(steps, kinds, routes, *size, self.keeps_starts, in_turn)
        if completed < len(table):
            raise InputError("the file deadlocks, so it has no finish; check-export shows where")
        tokens = list(zip(first[by_token].tolist(), second[by_token].tolist(), strict=True))
        return StepTimes(begin, end, tokens, int(end[~table.leaves].max(initial=0)))

    def _edges(self) -> tuple[Edges, Bool, I64]:
        """Return (step, step that waits for it), whether that is through a connection, and through which one."""
        table, tokens = self.table, tokens_of(self.table)
        of_tokens, *space = waits_of_tokens(tokens, np.arange(len(table) + 1), self.program.depth)
        rows: list[Edges] = [in_threadblocks(table.thread), named_waits(self.program)[0], *space]
        plain = sum(len(one) for one, _ in rows)
        rows.append(of_tokens)
        edges = np.concatenate([a for a, _ in rows]), np.concatenate([b for _, b in rows])
        is_token = np.arange(len(edges[0])) >= plain
        return edges, is_token, np.concatenate((np.full(plain, -1), tokens.of_matched))

    def _entries(self, graph: PrecedenceGraph) -> Bool:
        """Return the steps with which GPUs enter the call: they move no data, and nothing before them does."""
        from flowccl.export.proof.order_kernels import all_before

        return all_before(graph.order()[0], graph.ptr, graph.before, ~self.moves)

    def _local_times(self) -> I64:
        """Return the times of steps on one GPU; only the first step of a message has the fixed part."""
        table = self.table
        columns = table.name, np.diff(table.assign_ptr) * self.chunk_bytes, table.sources, self.is_first
        one, of = distinct(*columns)
        times = [
            self.network.local_ps(table.names[name], size, sources, first=first)
            for name, size, sources, first in zip(*(column[one].tolist() for column in columns), strict=True)
        ]
        return np.array(times, dtype=np.int64)[of]

    # -- sends --------------------------------------------------------------------------------------------------------

    def _kinds(self) -> tuple[I64, "SendKinds"]:
        """Return the kind of each step that sends, or -1, and all kinds with their routes."""
        from flowccl.export.proof.event_kernels import SendKinds

        table, send = self.table, np.flatnonzero(self.is_send)
        size = table.size * self.chunk_bytes * np.where(table.packets, 2, 1)
        plain = table.rank, table.sends_to, table.group, size, table.packets, table.is_proxied, self.is_first
        columns = (*plain, table.path, table.GBps)
        one, of = distinct(*(column[send] for column in columns))
        kind = np.full(len(table), -1, dtype=np.int64)
        kind[send] = of
        one = send[one]
        rows = zip(*(column[one].tolist() for column in columns), strict=True)
        choices = [self._choices(*row) for row in rows]
        route, lead, most = zip(*(one for found in choices for one in found), strict=True) if choices else ((), (), ())
        return kind, SendKinds(
            size[one],
            table.GBps[one] > 0,
            pointers([len(found) for found in choices]),
            np.array(route, dtype=np.int64),
            np.array(lead, dtype=np.int64),
            np.array(most, dtype=np.float64),
        )

    def _choices(
        self,
        rank: int,
        to: int,
        group: int,
        size: int,
        packets: int,
        proxied: int,
        first: int,
        path: int,
        rate_GBps: float,
    ) -> list[tuple[int, int, float]]:
        """Return (route, time before the bytes flow, highest rate) for each route that a send can take."""
        network = self.network
        if group >= 0:
            return [self._through_switch(rank, group, size, first, rate_GBps)]
        found, chosen = [], network.with_links(rank, to, self.table.paths[path]) if path >= 0 else []
        for route in chosen or network.between(rank, to, size, None if proxied < 0 else bool(proxied)):
            most = route.GBps
            if not route.is_proxied:
                most = min(most, network.threadblock_GBps(packets=bool(packets)))
            number = self.routes.setdefault(route, len(self.routes))
            found.append((number, route.overhead_ps if first else 0, min(most, rate_GBps or most)))
        return found

    def _through_switch(self, rank: int, group: int, size: int, first: int, rate_GBps: float) -> tuple[int, int, float]:
        """Return what an operation of a switch uses: the links between the switch and the GPUs of its group.

        A store to all moves the bytes from the issuing GPU and to every GPU. A load with reduction moves them up and
        down on every link of the group, and again on those of the issuing GPU.
        """
        network, (ranks, loads) = self.network, self.table.groups[group]
        others = [other for other in ranks if other != rank]
        out = [network.between(rank, other)[0] for other in others]
        into = [network.between(other, rank)[0] for other in others]
        links = {route.hops[-1][0] for route in out} | {out[0].hops[0][0]}
        if loads:
            links |= {route.hops[0][0] for route in into} | {into[0].hops[-1][0]}
        most = min(network.threadblock_GBps(packets=False), *(route.GBps for route in (*into, *out)))
        most = rate_GBps or (most / 2 if loads else most)
        lead = max(route.overhead_ps for route in out) if first else 0
        hops = tuple((link, 0, 0) for link in sorted(links))
        whole = SimulatedRoute(hops, (inf,), 0, 0, 0, 0, is_proxied=False, is_limited=False)
        return self.routes.setdefault(whole, len(self.routes)), lead, most

    # -- tokens -------------------------------------------------------------------------------------------------------

    def _delays(
        self, first: I64, second: I64, by_token: Bool, connection: I64, enters: Bool
    ) -> tuple[I64, I64, I64, I64]:
        """Return when the second of two steps sees that the first is complete: in its own threadblock -1.

        Also the number of (threadblock, other GPU) whose last send may still be on its way, for each such pair and for
        each send.
        """
        table, there = self.table, self.table.rank[second]
        if self.one_gpu is not None:
            there = np.where(by_token, self.one_gpu.receivers(table)[connection], there)
        delay = np.where(by_token, 0, -1)
        far = by_token & (table.rank[first] != there) & ~enters[first]
        a = first[far]
        own = table.is_proxied[a]
        proxied = np.where(own >= 0, own, table.by_proxy[connection[far]] if len(table.by_proxy) else own)
        columns = table.rank[a], there[far], proxied, table.packets[a]
        one, of = distinct(*columns)
        rows = zip(*(column[one].tolist() for column in columns), strict=True)
        delay[far] = np.array([self._delay(*row) for row in rows], dtype=np.int64)[of]
        ranks = self.program.num_gpus
        peer, ptr = _peers(table, self.is_send)
        key = np.repeat(table.thread, np.diff(ptr)) * ranks + peer
        known, number = np.unique(key, return_inverse=True)
        last = np.full(len(first), -1, dtype=np.int64)
        waits = np.flatnonzero(far)[table.size[a] == 0]
        asked = table.thread[first[waits]] * ranks + there[waits]
        place = np.searchsorted(known, asked)
        is_known = place < len(known)
        is_known[is_known] = known[place[is_known]] == asked[is_known]
        last[waits[is_known]] = place[is_known]
        return delay, last, ptr, number.ravel()

    def _delay(self, rank: int, peer: int, proxied: int, packets: int) -> int:
        """Return the time from the end of a step until another GPU sees its token."""
        route = self.network.signal_route(rank, peer, None if proxied < 0 else bool(proxied))
        return route.latency_ps + (0 if packets else route.signal_ps)


def _peers(table: StepArrays, is_send: Bool) -> tuple[I64, I64]:
    """Return the GPUs to which each step sends, one step after the other, and where those of a step begin."""
    sizes = np.array([len(ranks) for ranks, _ in table.groups], dtype=np.int64)
    count = np.where(is_send, 1, 0)
    grouped = np.flatnonzero(is_send & (table.group >= 0))
    count[grouped] = sizes[table.group[grouped]] if len(sizes) else 0
    ptr = pointers(count)
    peer = np.repeat(table.sends_to, count)
    for n in grouped.tolist():
        peer[ptr[n] : ptr[n + 1]] = table.groups[int(table.group[n])][0]
    return peer, ptr


def _first_of_messages(table: StepArrays, moves: Bool) -> Bool:
    """Return the steps that begin a message: all, except those that continue one by the word of the file."""
    order = np.argsort(table.thread, kind="stable")
    position = np.arange(len(order))
    moving = np.where(moves[order], position, -1)
    previous = np.concatenate(([-1], np.maximum.accumulate(moving)[:-1])) if len(order) else moving
    begins = np.searchsorted(table.thread[order], table.thread[order])
    has = previous >= begins
    other = order[np.maximum(previous, 0)]
    sends = table.sends_to >= 0
    same = has & (table.message[other] == table.message[order]) & (sends[other] == sends[order])
    result = np.empty(len(order), dtype=np.bool_)
    result[order] = (table.message[order] < 0) | ~same
    return result


def _route_arrays(network: SimulatedNetwork, routes: list[SimulatedRoute]) -> "SimulatedRoutes":
    """Return routes as arrays; limits come after the links."""
    from flowccl.export.proof.event_kernels import SimulatedRoutes

    limit_ptr, limit = network.topology.link_limits
    hops = [hop for route in routes for hop in route.hops]
    link, offset, segment = zip(*hops, strict=True) if hops else ((), (), ())
    return SimulatedRoutes(
        pointers([len(route.hops) for route in routes]),
        _ints(link),
        _ints(offset),
        _ints(segment),
        pointers([len(route.segment_GBps) for route in routes]),
        np.array([rate for route in routes for rate in route.segment_GBps], dtype=np.float64),
        _ints(route.link_overhead_ps for route in routes),
        np.array([route.is_proxied for route in routes], dtype=np.bool_),
        np.array([route.is_limited for route in routes], dtype=np.bool_),
        limit_ptr.astype(np.int64),
        limit.astype(np.int64) + len(network.topology.links),
        np.concatenate((network.topology.link_GBps, network.topology.limit_GBps)).astype(np.float64),
    )


def _ints(values: Iterable[int]) -> I64:
    return np.array(list(values), dtype=np.int64)
