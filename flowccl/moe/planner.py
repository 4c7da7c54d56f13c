"""The planner: a byte matrix, or blocks with several destinations, to a plan in milliseconds."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.moe.bound import PlanBound
from flowccl.moe.crossing_kernels import decompose, split_lanes, stage_rows
from flowccl.moe.lane_kernels import assign, blocks_of, crossings, cut, own_lanes, same_rails, whole_lanes
from flowccl.moe.layout import Layout, layout_of
from flowccl.moe.message_kernels import CROSS, FAN_OUT, GATHER, LOCAL, fan_outs, gathers, in_order, locals_of, place
from flowccl.moe.plan import Chunks, Messages, Plan
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import RuntimeProfile, runtime_profile
from flowccl.topology.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PlanParams:
    """How a plan is made.

    `balance`: use the GPUs of a host that have network cards to spare. `residual`: the share of the length that stages
    need not cover. `pieces`: messages of a pair of GPUs inside a host, besides the small ones at the start or the end.
    `cuts`: the times, as shares of the length, at which stages are divided.
    """

    balance: bool = True
    residual: float = 0.01
    pieces: int = 8
    cuts: tuple[float, ...] = (1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 31 / 32)
    rounds: int = 8


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks sorted by host pair and source: what a source has for the same destinations in one host."""

    ptr: Ints
    source: Ints
    bytes: Ints
    to_ptr: Ints
    to: Ints


class Planner:
    """Plans alltoallv and dispatch on one machine.

    The first plan of a process compiles the planner's loops, or loads them. Equal inputs give equal plans, on every
    computer.
    """

    def __init__(self, topology: Topology, *, runtime: str | RuntimeProfile = "ideal", unit_bytes: int = 1) -> None:
        """Prepare plans for a machine; messages are multiples of `unit_bytes` where the matrix is."""
        profile = runtime_profile(runtime) if isinstance(runtime, str) else runtime
        self.runtime = None if profile.is_ideal else profile
        self.topology = on_runtime(topology, profile)
        self.unit_bytes = unit_bytes
        self.layout = layout_of(self.topology)
        self._tables = _tables(self.layout)

    def plan(self, matrix: NDArray[np.int64], *, previous: Plan | None = None) -> Plan:
        """Return a plan of an alltoallv: rank s sends `matrix[s, d]` bytes to rank d; the diagonal does not move.

        `previous` is the plan of a similar matrix: its stages are where the new ones start from.
        """
        gpus = self.topology.num_gpus
        if matrix.shape != (gpus, gpus):
            raise DemandError(f"alltoallv: the byte matrix must be {gpus} x {gpus}, got shape {matrix.shape}")
        ptr, source, size, to = blocks_of(matrix, self.layout.host_ptr, self.layout.host_gpu)
        return self.plan_blocks(Blocks(ptr, source, size, np.arange(len(to) + 1), to), "alltoallv", previous=previous)

    def plan_blocks(
        self, blocks: Blocks, collective: str, *, params: PlanParams | None = None, previous: Plan | None = None
    ) -> Plan:
        """Return a plan of blocks."""
        params = params or PlanParams()
        layout, tables, unit = self.layout, self._tables, self.unit_bytes
        before = np.concatenate(([0], np.cumsum(blocks.bytes)))
        demand = before[blocks.ptr[1:]] - before[blocks.ptr[:-1]]
        demand[tables.inside] = 0
        lane_bytes = self._lane_bytes(blocks, demand, params)
        segments = assign(
            blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr, blocks.to,
            layout.lane_ptr, tables.lane_out, tables.lane_in, lane_bytes,
        )  # fmt: skip
        rows, stages, length = self._rows(lane_bytes, params, previous)
        lane, size, start, end = crossings(*rows, tables.lane_at, lane_bytes, unit)
        first, number, chunk_block, chunk_offset, chunk_bytes = cut(*segments, lane, size, len(blocks.source))
        return self._placed(
            blocks, collective, params, lane, size, start, end, first, number, chunk_block, chunk_offset, chunk_bytes,
            length, stages,
        )  # fmt: skip

    def _lane_bytes(self, blocks: Blocks, demand: Ints, params: PlanParams) -> Ints:
        layout, tables = self.layout, self._tables
        if not params.balance:
            return own_lanes(
                blocks.ptr, blocks.source, blocks.bytes, layout.lane_ptr, tables.lane_out, layout.lane_weight, demand
            )
        rounds = 0 if layout.is_even else params.rounds
        share = split_lanes(
            demand.astype(np.float64), layout.lane_ptr, tables.lane_out, tables.lane_in, tables.lane_ps,
            layout.lane_weight, self.topology.num_gpus, rounds,
        )  # fmt: skip
        return whole_lanes(share, demand, layout.lane_ptr, self.unit_bytes)

    def _rows(
        self, lane_bytes: Ints, params: PlanParams, previous: Plan | None
    ) -> tuple[tuple[Ints, Ints, Ints, Floats, Floats, Floats, Ints], tuple[Ints, ...], float]:
        """The stages of all classes of rails as rows, sorted by time; the stages as such; and the longest length."""
        layout, tables, hosts = self.layout, self._tables, self.layout.hosts
        load = np.zeros((layout.rails, hosts * hosts))
        load[layout.lane_rail, tables.lane_key] = lane_bytes * tables.lane_ps
        # Shares of a lane that differ by rounding only are one class.
        class_of = np.zeros(layout.rails, dtype=np.int64)
        if params.balance and layout.is_even and not layout.has_trunks:
            load[:] = load.mean(axis=0)
        else:
            class_of = np.arange(layout.rails) if layout.has_trunks else same_rails(load)
        parts: list[tuple[Ints, Floats, Floats, Floats]] = []
        kept: list[Ints] = []
        number: list[int] = []
        for rail in np.unique(class_of).tolist():
            seed = tables.no_stages
            if previous is not None and len(kept) < len(previous.stages):
                seed = previous.stages[len(kept)]
            square = load[rail].reshape(hosts, hosts)
            receiver, time, length = decompose(square, params.residual, seed, 2 * hosts * hosts + 8)
            cuts = np.array(params.cuts) * length
            turn = rail / layout.rails if layout.has_trunks else 0.0
            parts.append(stage_rows(square, receiver, time, length, cuts, turn))
            kept.append(receiver)
            number.append(rail)
        start = np.concatenate([part[2] for part in parts])
        rows = (
            np.argsort(start, kind="stable"),
            np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts]),
            np.concatenate([part[0] for part in parts]),
            np.concatenate([part[1] for part in parts]),
            start,
            np.concatenate([part[3] for part in parts]),
            (class_of[None, :] == np.array(number)[:, None]).astype(np.int64),
        )
        return rows, tuple(kept), float(rows[5].max(initial=0.0))

    def _placed(
        self,
        blocks: Blocks,
        collective: str,
        params: PlanParams,
        lane: Ints,
        size: Ints,
        start: Floats,
        end: Floats,
        first: Ints,
        number: Ints,
        chunk_block: Ints,
        chunk_offset: Ints,
        chunk_bytes: Ints,
        length: float,
        stages: tuple[Ints, ...],
    ) -> Plan:
        layout, tables, paths = self.layout, self._tables, self.layout.paths
        pairs, hosts = len(paths.src), layout.hosts
        pair = layout.lane_pair[lane]
        least = (tables.pair_GBps * (length / 1e3 / 1024)).astype(np.int64)
        gather_of, gather_pair, gather_bytes, needed = gathers(
            paths.src[pair], first, number, chunk_block, chunk_bytes, blocks.source, paths.pair_of, pairs,
            params.pieces, least,
        )  # fmt: skip
        entry_ptr, fan_of, fan_pair, fan_bytes, last = fan_outs(
            paths.dst[pair], first, number, chunk_block, chunk_bytes, blocks.to_ptr, blocks.to, paths.pair_of, pairs,
            params.pieces, least,
        )  # fmt: skip
        local_block, local_offset, local_size, local_ptr, local_of, local_pair, local_bytes, part = locals_of(
            blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr, blocks.to, hosts, paths.pair_of, pairs,
            least * 16, params.pieces, self.unit_bytes,
        )  # fmt: skip
        count = [len(gather_pair), len(pair), len(fan_pair), len(local_pair)]
        base = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        kind = np.repeat(np.array([GATHER, CROSS, FAN_OUT, LOCAL]), count)
        around = tables.place[paths.dst[local_pair]] - tables.place[paths.src[local_pair]]
        spread = (part + (around % tables.most) / tables.most) * (length / params.pieces)
        key = np.concatenate((start[needed] - length / 8, start, end[last], spread))
        every = np.concatenate((gather_pair, pair, fan_pair, local_pair))
        every_bytes = np.concatenate((gather_bytes, size, fan_bytes, local_bytes))
        crossing = np.concatenate((needed, np.arange(len(pair)), last, np.zeros(len(local_pair), dtype=np.int64)))
        hops = np.diff(paths.path_ptr)[every]
        hop_ptr = np.concatenate(([0], np.cumsum(hops))).astype(np.int64)
        order = in_order(key, kind, length)
        hop_start, arrival = place(
            order, kind, every, every_bytes, crossing, first, number, gather_of, paths.dst,
            paths.path_ptr, paths.path_route, paths.route_GBps, paths.route_latency_ps, paths.route_overhead_ps,
            paths.route_overhead_GBps, paths.use_ptr, paths.use_resource, paths.use_offset_ps, paths.use_more_ps,
            tables.server_ptr, hop_ptr, self.topology.num_gpus,
        )  # fmt: skip
        at = np.repeat(paths.path_ptr[:-1][every] - hop_ptr[:-1], hops) + np.arange(hop_ptr[-1])
        messages = Messages(
            kind, every, paths.src[every], paths.dst[every], every_bytes, hop_ptr, paths.path_route[at], hop_start,
            arrival,
        )  # fmt: skip
        cross_of = np.repeat(np.arange(len(pair)), number)
        cross = np.empty(len(chunk_block), dtype=np.int64)
        cross[np.repeat(first, number) + np.arange(len(cross_of)) - np.repeat(np.cumsum(number) - number, number)] = (
            cross_of + base[1]
        )
        block = np.concatenate((chunk_block, local_block))
        none = np.full(len(local_block), -1, dtype=np.int64)
        fanned = np.where(fan_of >= 0, fan_of + base[2], -1)
        sizes = np.concatenate((np.diff(entry_ptr), np.diff(local_ptr)))
        pointer = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        to_at = np.repeat(blocks.to_ptr[:-1][block] - pointer[:-1], sizes) + np.arange(pointer[-1])
        chunks = Chunks(
            block,
            blocks.source[block],
            np.concatenate((chunk_offset, local_offset)),
            np.concatenate((chunk_bytes, local_size)),
            np.concatenate((gather_of, none)),
            np.concatenate((cross, none)),
            pointer,
            blocks.to[to_at],
            np.concatenate((fanned, local_of + base[3])),
        )
        return Plan(layout, collective, messages, chunks, 1, PlanBound(0, ""), stages, self.runtime)


@dataclass(frozen=True, eq=False)
class _Tables:
    """What is the same for all plans of a machine."""

    lane_out: Ints
    lane_in: Ints
    lane_ps: Floats
    lane_key: Ints
    lane_at: Ints
    inside: Ints
    server_ptr: Ints
    pair_GBps: Floats
    place: Ints
    most: int
    no_stages: Ints


def _tables(layout: Layout) -> _Tables:
    paths, hosts = layout.paths, layout.hosts
    route = paths.path_route[paths.path_ptr[:-1]]
    lane_key = np.repeat(np.arange(hosts * hosts), np.diff(layout.lane_ptr))
    lane_at = np.full((layout.rails, hosts * hosts), -1, dtype=np.int64)
    lane_at[layout.lane_rail, lane_key] = np.arange(len(lane_key))
    place_of = np.zeros(len(layout.host_of), dtype=np.int64)
    place_of[layout.host_gpu] = np.arange(len(layout.host_gpu)) - np.repeat(
        layout.host_ptr[:-1], np.diff(layout.host_ptr)
    )
    return _Tables(
        paths.src[layout.lane_pair],
        paths.dst[layout.lane_pair],
        1000.0 / paths.route_GBps[route[layout.lane_pair]],
        lane_key,
        lane_at,
        np.arange(hosts) * (hosts + 1),
        np.concatenate(([0], np.cumsum(paths.servers))).astype(np.int64),
        paths.route_GBps[route],
        place_of,
        int(np.diff(layout.host_ptr).max()),
        np.zeros((0, hosts), dtype=np.int64),
    )
