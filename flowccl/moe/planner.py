"""The planner: from a byte matrix, or from blocks with several destinations, to a plan in milliseconds."""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError, InputError
from flowccl.moe.blocks import Blocks
from flowccl.moe.crossing_kernels import decompose, split_lanes, stage_rows
from flowccl.moe.lane_choice_kernels import least_load, segments_of
from flowccl.moe.lane_kernels import StageRows, assign, blocks_of, own_lanes, same_rails, whole_lanes
from flowccl.moe.layout import layout_of
from flowccl.moe.making import made
from flowccl.moe.plan import Plan
from flowccl.moe.plan_params import (
    COARSE,
    DENSE,
    DIRECT,
    FAST,
    FAST_WHOLE,
    FINE,
    LINKS,
    MANY,
    MANY_LINKS,
    MEDIUM,
    OWN,
    RAILS,
    SPREAD_OUT,
    UNCUT,
    WHOLE,
    Order,
    PlanParams,
)  # fmt: skip
from flowccl.moe.relaying import PhasedMachine, phased_machine, relayed
from flowccl.moe.reordering import MOST_MESSAGES, busiest_ps, reordered
from flowccl.moe.table_kernels import LaneSegments
from flowccl.moe.tables import tables_of
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import RuntimeProfile, runtime_profile
from flowccl.topology.topology import Topology

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MAX_ENTRY_BYTES = 2**39
"""The most bytes of an entry, more than a GPU has memory: with it, times in picoseconds stay far below 2^63."""
_FEW_HOSTS = 4  # with up to this many hosts, the stages themselves are so few that they are divided more often
_GOOD = 0.01  # with few hosts, a plan with a larger gap is compared with others
_SMALL = 64.0  # crossing times below this many latencies: plans with fewer and larger messages are tried too
_LATE = 1.05  # times the load of the most loaded link: plans that end later are tried in another order
_RELAYED = 0.02  # larger gaps: a plan in which data crosses over third hosts is tried
_ALIKE = 1.02  # times the least load of a plan: those with less are as good


class Planner:
    """Plans alltoallv and dispatch on one machine.

    The first plan of a process compiles the planner's loops, or loads them. Equal inputs give equal plans, on every
    computer.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        runtime: str | RuntimeProfile = "ideal",
        unit_bytes: int = 1,
        buffer_bytes: int | None = None,
    ) -> None:
        """Prepare plans for a machine; chunks are multiples of `unit_bytes` where the entries of the matrix are.

        `buffer_bytes` limits the data of others that a GPU passes on in one call, all of it together.
        """
        if unit_bytes < 1:
            raise InputError(f"unit_bytes must be at least 1, got {unit_bytes}")
        if buffer_bytes is not None and buffer_bytes < 0:
            raise InputError(f"buffer_bytes must not be negative, got {buffer_bytes}")
        self.buffer_bytes = buffer_bytes
        profile = runtime_profile(runtime) if isinstance(runtime, str) else runtime
        self.runtime = None if profile.is_ideal else profile
        self.topology = on_runtime(topology, profile)
        self.unit_bytes = unit_bytes
        self.layout = layout_of(self.topology)
        self._tables = tables_of(self.layout)

    def plan(self, matrix: NDArray[Any], *, params: PlanParams | None = None, previous: Plan | None = None) -> Plan:
        """Return a plan of an alltoallv: rank s sends `matrix[s, d]` bytes to rank d; the diagonal does not move.

        `previous` is the plan of a similar matrix: its stages are where the new ones start from.
        """
        checked = self.checked(matrix)
        ptr, source, size, to, total = blocks_of(checked, self.layout.host_ptr, self.layout.host_gpu)
        blocks = Blocks(ptr, source, size, self._tables.upto(len(to)), to)
        return self._best(blocks, total, "alltoallv", params, previous)

    def plan_blocks(
        self, blocks: Blocks, collective: str, *, params: PlanParams | None = None, previous: Plan | None = None
    ) -> Plan:
        """Return a plan of blocks, which may have several destinations in one host."""
        before = np.concatenate(([0], np.cumsum(blocks.bytes))).astype(np.int64)
        return self._best(blocks, before[blocks.ptr[1:]] - before[blocks.ptr[:-1]], collective, params, previous)

    def checked(self, matrix: NDArray[Any]) -> Ints:
        """Return a byte matrix as whole numbers; raise DemandError where it cannot be one of this machine."""
        gpus = self.topology.num_gpus
        if matrix.shape != (gpus, gpus):
            raise DemandError(f"alltoallv: the byte matrix must be {gpus} x {gpus}, got shape {matrix.shape}")
        if matrix.dtype.kind not in "iu" and not (
            matrix.dtype.kind == "f" and np.all(np.isfinite(matrix)) and np.all(matrix == np.floor(matrix))
        ):
            raise DemandError("alltoallv: the byte matrix must contain whole numbers of bytes")
        if matrix.size and matrix.min() < 0:
            s, d = np.argwhere(matrix < 0)[0]
            raise DemandError(f"alltoallv: entry [{s}][{d}] must be >= 0, got {matrix[s, d]}")
        if matrix.size and int(matrix.max()) > MAX_ENTRY_BYTES:
            s, d = np.argwhere(matrix == matrix.max())[0]
            raise DemandError(f"alltoallv: entry [{s}][{d}] is too large, got {matrix[s, d]}")
        return np.ascontiguousarray(matrix, dtype=np.int64)

    def _best(
        self, blocks: Blocks, total: Ints, collective: str, params: PlanParams | None, previous: Plan | None
    ) -> Plan:
        """The best of the plans worth a try."""
        total[self._tables.inside] = 0
        usual = DENSE if self.layout.hosts <= _FEW_HOSTS or self.layout.has_trunks else FINE
        first = self._plan(blocks, total, collective, params or usual, previous)
        if params is not None:
            return first
        others = self._others(usual, first)
        plans = [first, *(self._plan(blocks, total, collective, one, previous) for one in others)]
        fitting = self._fitting(plans, partial(self._plan, blocks, total, collective))
        best = _in_order(fitting, self._crossing_ps(total))
        if self._phased is not None and best.gap > _RELAYED:
            other = relayed(self._phased, best, usual, self.unit_bytes)
            if other is not None and other.finish_ps < best.finish_ps and self._fits(other):
                return other
        return best

    @cached_property
    def _phased(self) -> PhasedMachine | None:
        """The machine for plans in which data crosses over third hosts; None where that is never of use."""
        return None if self.layout.is_even else phased_machine(self.layout, self._tables)

    def _crossing_ps(self, total: Ints) -> float:
        """How long the busiest host sends or receives at least; 0 where its lanes are not equally fast."""
        if not self.layout.is_even:
            return 0.0
        square = total.reshape(self.layout.hosts, self.layout.hosts)
        return float(max(square.sum(axis=0).max(), square.sum(axis=1).max())) * self._tables.rail_ps

    def _others(self, usual: PlanParams, first: Plan) -> list[PlanParams]:
        """Other plans worth a try: none for large matrices on equal rails without message costs."""
        others: list[PlanParams] = []
        if self.topology.has_overheads:
            others += [replace(FINE, lead=1 / 2), MEDIUM, COARSE, FAST, FAST_WHOLE, RAILS, SPREAD_OUT, DIRECT]
        elif self.layout.hosts <= _FEW_HOSTS and first.gap > _GOOD:
            others += [replace(usual, lead=1 / 2), FAST, RAILS, MANY, LINKS, MANY_LINKS]
        elif not self.layout.is_even:
            others += [FAST, RAILS]
        if self.layout.has_trunks:
            costly = (MEDIUM, COARSE, UNCUT) if self.topology.has_overheads else ()
            others += [FAST, FAST_WHOLE, RAILS, *(replace(one, in_turn=True) for one in (usual, *costly))]
        if first.finish_ps < _SMALL * self._tables.latency_ps:
            others += [WHOLE, OWN, COARSE, replace(FINE, balance=False), DIRECT, replace(DIRECT, pieces=1, cuts=())]
        return list(dict.fromkeys(others))

    def _fitting(self, plans: list[Plan], make: Callable[[PlanParams, None], Plan]) -> list[Plan]:
        """The plans whose relayed data fits in the buffers; those without balancing are tried if none does."""
        fitting = [plan for plan in plans if self._fits(plan)]
        fitting = fitting or [plan for plan in (make(OWN, None), make(DIRECT, None)) if self._fits(plan)]
        if not fitting:
            least = min(plans, key=lambda plan: int(plan.relayed_bytes.max())).relayed_bytes
            name = self.topology.nodes[int(least.argmax())].name
            raise DemandError(
                f"alltoallv: {name} would have to pass on {least.max()} bytes of others, and its buffer has "
                f"{self.buffer_bytes}"
            )
        return fitting

    def _fits(self, plan: Plan) -> bool:
        """Whether the data that GPUs pass on fits in their buffers."""
        return self.buffer_bytes is None or int(plan.relayed_bytes.max()) <= self.buffer_bytes

    def _plan(self, blocks: Blocks, total: Ints, collective: str, params: PlanParams, previous: Plan | None) -> Plan:
        """The plan with some parameters; `total` are the bytes between every two hosts."""
        lane_bytes, segments = self._segments(blocks, total, params)
        rows, stages, length = self._rows(lane_bytes, total, params, previous)
        messages, chunks = made(
            self.layout, self._tables, blocks, lane_bytes, segments, rows, length, params, self.unit_bytes
        )
        return Plan(self.layout, collective, blocks, messages, chunks, stages, self.runtime)

    def _segments(self, blocks: Blocks, total: Ints, params: PlanParams) -> tuple[Ints, LaneSegments]:
        """The bytes of each lane, and which bytes of which block these are."""
        layout, tables, paths = self.layout, self._tables, self.layout.paths
        pairs = len(tables.pairs.inside_GBps)
        if not params.links:
            lane_bytes = self._lane_bytes(blocks, total, params)
            segments = assign(
                blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr, blocks.to, layout.lane_ptr, tables.lane_out,
                tables.lane_in, lane_bytes, paths.slot, paths.place, pairs,
            )  # fmt: skip
            return lane_bytes, LaneSegments(*segments)
        amount, ptr = least_load(
            blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr, blocks.to, layout.lane_ptr, tables.lane_out,
            tables.lane_in, tables.pairs.lane_pair, paths.slot, paths.place, tables.leg_ptr, tables.leg_resource,
            tables.leg_ps, len(paths.servers), self.unit_bytes, params.rounds,
        )  # fmt: skip
        lane_bytes, segments = segments_of(
            amount, ptr, blocks.ptr, blocks.source, blocks.to_ptr, blocks.to, layout.lane_ptr, tables.lane_out,
            tables.lane_in, paths.slot, paths.place, pairs,
        )  # fmt: skip
        return lane_bytes, LaneSegments(*segments)

    def _lane_bytes(self, blocks: Blocks, total: Ints, params: PlanParams) -> Ints:
        """The bytes of each lane."""
        layout, tables = self.layout, self._tables
        if not params.balance:
            return own_lanes(blocks.ptr, blocks.source, blocks.bytes, layout.lane_ptr, tables.lane_out, total)
        if layout.is_even:
            return whole_lanes(layout.lane_weight, total, layout.lane_ptr, self.unit_bytes, True)
        share = split_lanes(
            total.astype(np.float64), layout.lane_ptr, tables.lane_out, tables.lane_in, tables.lane_ps,
            layout.lane_weight, self.topology.num_gpus, params.rounds,
        )  # fmt: skip
        return whole_lanes(share, total, layout.lane_ptr, self.unit_bytes, False)

    def _rows(
        self, lane_bytes: Ints, total: Ints, params: PlanParams, previous: Plan | None
    ) -> tuple[StageRows, tuple[Ints, ...], float]:
        """The stages of all classes of rails as rows, sorted by time; the stages as such; and the longest length."""
        layout, hosts = self.layout, self.layout.hosts
        in_turn = params.in_turn and layout.has_trunks
        load, class_of, rails = self._loads(
            lane_bytes, total, params.balance and not (in_turn or params.links), in_turn
        )
        seeds = iter(() if previous is None else previous.stages)
        parts, kept, row_class = list[_Part](), list[Ints](), list[int]()
        for number, rail in enumerate(rails):
            for share, square in enumerate(self._fractions(load[number].reshape(hosts, hosts), in_turn)):
                seed = next(seeds, self._tables.no_stages)
                if params.order == "stages":
                    receiver, time, length = decompose(square, params.residual, seed, 2 * hosts * hosts + 8)
                else:
                    receiver, time, length = _fixed_order(square, params.order)
                kept.append(receiver)
                parts.append(_Part(rail, share, square, receiver, time, length))
                row_class.append(number)
        if len(parts) == 1:  # all rails are alike, and rows are in order of time
            found = stage_rows(square, receiver, time, np.array(params.cuts) * length)
            count, last = len(found[0]), float(found[3].max(initial=0.0))
            members = np.ones((1, layout.rails), dtype=np.int64)
            return StageRows(np.arange(count), np.zeros(count, np.int64), *found, members), tuple(kept), last
        trunk_ps = self._trunk_ps(lane_bytes) if in_turn else 0.0
        rows = _rows_of(parts, np.array(params.cuts), layout.rails, trunk_ps, in_turn)
        to, share_of, start, end = map(np.concatenate, zip(*rows, strict=True))
        order = np.argsort(start, kind="stable")
        members = (class_of == np.arange(len(rails))[:, None]).astype(np.int64)
        classes = np.repeat(row_class, [len(row[0]) for row in rows])
        inputs = StageRows(order, classes, to, share_of, start, end, members)
        return inputs, tuple(kept), float(end.max(initial=0.0))

    def _loads(self, lane_bytes: Ints, total: Ints, balance: bool, separate: bool) -> tuple[Floats, Ints, list[int]]:
        """The times of all pairs of hosts for each class of equally loaded rails, the classes, and a rail of each."""
        layout, tables, cells = self.layout, self._tables, self.layout.hosts**2
        if balance and layout.is_even:  # rails differ by rounding only
            return np.multiply(total[None, :], tables.rail_ps, dtype=np.float64), tables.one_class, [0]
        load = np.zeros((layout.rails, cells))
        load[layout.lane_rail, tables.lane_key] = lane_bytes * tables.lane_ps
        class_of = np.arange(layout.rails) if separate else same_rails(load)
        rails, class_of = np.unique(class_of, return_inverse=True)
        return load[rails], class_of, rails.tolist()

    def _fractions(self, load: Floats, in_turn: bool) -> list[Floats]:
        """The loads that are decomposed: all, or those over trunks and the others."""
        if not in_turn:
            return [load]
        over = self._tables.over_trunk
        return [np.where(over, load, 0.0), np.where(over, 0.0, load)]

    def _trunk_ps(self, lane_bytes: Ints) -> float:
        """The time that the most loaded trunk needs."""
        tables = self._tables
        busy = np.bincount(tables.trunk_use, (lane_bytes * tables.lane_ps)[tables.trunk_lane], len(tables.trunk_places))
        return float((busy / tables.trunk_places).max(initial=0.0))


def _in_order(plans: list[Plan], crossing_ps: float) -> Plan:
    """The earliest plan; of those with the least loads, the first and the earliest are tried in another order, too."""
    best = min(plans, key=lambda plan: plan.finish_ps)
    if best.finish_ps <= crossing_ps * _LATE or len(best.messages) > MOST_MESSAGES:
        return best
    loads = [busiest_ps(plan) for plan in plans]
    light = [plan for load, plan in zip(loads, plans, strict=True) if load <= min(loads) * _ALIKE]
    earliest = min(light, key=lambda plan: plan.finish_ps)
    for plan in (earliest, *(plan for plan in light[:1] if plan is not earliest)):
        if best.finish_ps > min(loads) * _LATE:
            best = min(best, reordered(plan), key=lambda plan: plan.finish_ps)
    return best


def _fixed_order(load: Floats, order: Order) -> tuple[Ints, Floats, float]:
    """Stages in which every host sends all that it has for the next host, or for the host of that rank."""
    hosts = np.arange(len(load))
    receiver = np.repeat(hosts[:, None], len(hosts), axis=1)
    if order == "shifted":
        receiver = (hosts[None, :] + hosts[:, None] + 1) % len(hosts)
    time = load[hosts[None, :], receiver].max(axis=1)
    return receiver, time, float(time.sum())


class _Part(NamedTuple):
    """A load matrix of a rail with its stages; `share` 0 crosses trunks where rails take turns on those."""

    rail: int
    share: int
    load: Floats
    receiver: Ints
    time: Floats
    length: float


def _rows_of(
    parts: list["_Part"], cuts: Floats, rails: int, trunk_ps: float, in_turn: bool
) -> list[tuple[Ints, Floats, Floats, Floats]]:
    """The rows of the stages of each part.

    Where rails take turns on trunks, each sends the data that crosses them at another time: the time until all is done
    is a cycle, in which the rails start one after the other. So trunks are used evenly.
    """
    if not in_turn:
        return [stage_rows(part.load, part.receiver, part.time, cuts * part.length) for part in parts]
    result = []
    both = {part.rail: 0.0 for part in parts}
    for part in parts:
        both[part.rail] += part.length
    cycle = max(trunk_ps, *both.values())
    first = {part.rail: part.length for part in parts if part.share == 0}
    for part in parts:
        begin = part.rail / rails * cycle + (first[part.rail] if part.share else 0.0)
        wrap = cycle - begin if begin < cycle else 2 * cycle - begin
        to, share, start, end = stage_rows(part.load, part.receiver, part.time, np.append(cuts * part.length, wrap))
        late = np.floor((begin + start) / cycle + 1e-9) * cycle
        result.append((to, share, begin + start - late, begin + end - late))
    return result
