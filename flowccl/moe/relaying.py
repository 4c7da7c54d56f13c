"""Plans in which data crosses over a third host: for hosts that share few rails, while other rails have time to spare.

A GPU of the third host receives the data, as if it were for that GPU, and sends it on, as if it were its own. Such a
plan is made on a machine on which every host appears three times, with the same links: once for what is sent to third
hosts, once for all other data, and once for what third hosts send on. Lanes carry the data of the three in this order.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.moe.blocks import Blocks
from flowccl.moe.crossing_kernels import decompose, split_lanes, stage_rows
from flowccl.moe.lane_kernels import StageRows, assign, whole_lanes
from flowccl.moe.layout import HostLayout
from flowccl.moe.making import made
from flowccl.moe.plan import Chunks, Plan, Relays
from flowccl.moe.plan_params import PlanParams
from flowccl.moe.relay_kernels import phased_rows, relayed_bytes, relayed_parts
from flowccl.moe.reordering import MOST_MESSAGES, reordered
from flowccl.moe.table_kernels import LaneSegments
from flowccl.moe.tables import PlannerTables, tables_of

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_PHASES = 3  # to third hosts, directly, from third hosts
_WORTH = 0.99  # times the load of the busiest network card without relays: with them, it must be less


@dataclass(frozen=True, eq=False)
class PhasedMachine:
    """The machine with every host once per phase: host h of phase p has the number p * hosts + h, GPUs likewise.

    Pair k of its layout is pair `pair_of[k]` of the real one. `partial` says which host pairs lack lanes that one of
    the hosts has to others.
    """

    real: HostLayout
    real_tables: PlannerTables
    layout: HostLayout
    tables: PlannerTables
    pair_of: Ints
    partial: NDArray[np.bool_]


def phased_machine(layout: HostLayout, tables: PlannerTables) -> PhasedMachine | None:
    """Return the machine with three phases; None where all hosts reach each other over all their network cards."""
    hosts, gpus = layout.hosts, layout.topology.num_gpus
    cards = [np.unique(tables.lane_key * gpus + ends) // gpus for ends in (tables.lane_out, tables.lane_in)]
    out, into = (np.bincount(pair, minlength=hosts * hosts).reshape(hosts, hosts) for pair in cards)
    partial = ((out < out.max(axis=1)[:, None]) | (into < into.max(axis=0)[None, :])) & ~np.eye(hosts, dtype=np.bool_)
    if hosts < 3 or not partial.any():
        return None
    lanes = len(layout.lane_pair)
    inside = len(layout.paths.src) - lanes
    pair_of = np.concatenate((np.tile(np.arange(inside), _PHASES), inside + np.tile(np.arange(lanes), _PHASES)))
    phased = _phased_layout(layout, tables.lane_key, pair_of, inside)
    return PhasedMachine(layout, tables, phased, tables_of(phased), pair_of, partial.reshape(-1))


def _phased_layout(layout: HostLayout, lane_key: Ints, pair_of: Ints, inside: int) -> HostLayout:
    paths, hosts, gpus = layout.paths, layout.hosts, layout.topology.num_gpus
    lanes = len(layout.lane_pair)
    phase = np.arange(_PHASES)[:, None]
    of_pair = np.concatenate((np.repeat(phase, inside), np.repeat(phase, lanes)))
    a, b = np.divmod(lane_key, hosts)
    key = ((phase * hosts + a) * (_PHASES * hosts) + phase * hosts + b).reshape(-1)
    route, count = _rows_of(pair_of, paths.path_ptr)
    every = replace(
        paths,
        src=paths.src[pair_of] + of_pair * gpus,
        dst=paths.dst[pair_of] + of_pair * gpus,
        path_ptr=pointers(count),
        path_route=paths.path_route[route],
        slot=(paths.slot + phase * inside).reshape(-1),
        place=np.tile(paths.place, _PHASES),
        quick=paths.quick[pair_of],
    )
    return replace(
        layout,
        host_of=(layout.host_of + phase * hosts).reshape(-1),
        host_ptr=np.append((layout.host_ptr[:-1] + phase * gpus).reshape(-1), _PHASES * gpus),
        host_gpu=(layout.host_gpu + phase * gpus).reshape(-1),
        lane_ptr=np.searchsorted(key, np.arange((_PHASES * hosts) ** 2 + 1)).astype(np.int64),
        lane_rail=np.tile(layout.lane_rail, _PHASES),
        lane_pair=_PHASES * inside + np.arange(_PHASES * lanes),
        lane_weight=np.tile(layout.lane_weight, _PHASES),
        is_even=False,
        paths=every,
    )


def _rows_of(rows: Ints, ptr: Ints) -> tuple[Ints, Ints]:
    """The entries of some rows, one row after the other, and how many each has; row k has ptr[k] to ptr[k + 1] - 1."""
    count = np.diff(ptr)[rows]
    return np.repeat(ptr[:-1][rows] - pointers(count)[:-1], count) + np.arange(count.sum()), count


def relayed(machine: PhasedMachine, plan: Plan, params: PlanParams, unit_bytes: int) -> Plan | None:
    """Return a plan of the same blocks that crosses third hosts; None where network cards would hardly carry less."""
    layout, tables, hosts, blocks = machine.real, machine.real_tables, machine.real.hosts, plan.blocks
    total = np.bincount(_host_pairs(blocks, hosts), blocks.bytes, hosts * hosts).astype(np.int64)
    total[tables.inside] = 0
    via = relayed_bytes(
        total, layout.lane_ptr, tables.lane_out, tables.lane_in, tables.lane_ps, machine.partial,
        layout.topology.num_gpus, params.rounds,
    )  # fmt: skip
    crossing = total.reshape(hosts, hosts) - via.sum(axis=1) + via.sum(axis=2) + via.sum(axis=0)
    share, top = _split(layout, tables, crossing.reshape(-1), params.rounds)
    if not via.any() or top > _WORTH * _split(layout, tables, total.astype(np.float64), params.rounds)[1]:
        return None
    weight = share / np.maximum(crossing.reshape(-1)[tables.lane_key], 1.0)
    parts = relayed_parts(via, blocks.ptr, blocks.bytes, layout.lane_ptr, tables.lane_in, weight, unit_bytes)
    lane_bytes = _lane_bytes(_crossing(blocks, parts, layout, total), share, machine, unit_bytes)
    rows, length = _stage_rows(lane_bytes, layout, tables, params)
    phased = _phased_blocks(blocks, parts, layout, rows)
    messages, chunks = made(
        machine.layout, machine.tables, phased.blocks, lane_bytes, _segments(phased, lane_bytes, machine), rows,
        length, params, unit_bytes,
    )  # fmt: skip
    if len(messages) > MOST_MESSAGES:
        return None
    messages = replace(messages, pair=machine.pair_of[messages.pair].astype(np.int32))
    return reordered(
        replace(plan, messages=messages, chunks=_chunks(chunks, phased, parts), stages=()), has_times=False
    )


def _segments(phased: "_PhasedBlocks", lane_bytes: Ints, machine: PhasedMachine) -> LaneSegments:
    """The segments of the lanes; those of relayed parts in the order in which third hosts send them on."""
    blocks, layout, tables = phased.blocks, machine.layout, machine.tables
    ptr, rows, gathered, fanned = assign(
        blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr, blocks.to, layout.lane_ptr, tables.lane_out,
        tables.lane_in, lane_bytes, layout.paths.slot, layout.paths.place, len(tables.pairs.inside_GBps),
    )  # fmt: skip
    lane = np.repeat(np.arange(len(lane_bytes)), np.diff(ptr))
    return LaneSegments(ptr, rows[np.lexsort((phased.when[rows[:, 0]], lane))], gathered, fanned)


def _split(layout: HostLayout, tables: PlannerTables, amount: Floats, rounds: int) -> tuple[Floats, float]:
    """The bytes of each lane, and how long the busiest network card carries data."""
    gpus = layout.topology.num_gpus
    share = split_lanes(
        np.maximum(amount, 0.0), layout.lane_ptr, tables.lane_out, tables.lane_in, tables.lane_ps, layout.lane_weight,
        gpus, rounds,
    )  # fmt: skip
    busy = [np.bincount(end, share * tables.lane_ps, gpus).max() for end in (tables.lane_out, tables.lane_in)]
    return share, float(max(busy))


@dataclass(frozen=True, eq=False)
class _PhasedBlocks:
    """The blocks on the machine with three phases: block k is block `origin[k]` from byte `offset[k]` on.

    It goes to, or from, a third host as relayed part `part[k]`, which that host sends on at about `when[k]`; else these
    are -1 and 0.
    """

    blocks: Blocks
    phase: Ints
    origin: Ints
    offset: Ints
    part: Ints
    when: Floats


def _host_pairs(blocks: Blocks, hosts: int) -> Ints:
    """The pair of hosts of each block."""
    return np.repeat(np.arange(hosts * hosts), np.diff(blocks.ptr))


def _crossing(blocks: Blocks, parts: Ints, layout: HostLayout, total: Ints) -> Ints:
    """The bytes of every two hosts in each phase, [phases, hosts * hosts]."""
    hosts, (block, _, size, via) = layout.hosts, parts.T
    (a, b), c = np.divmod(_host_pairs(blocks, hosts)[block], hosts), layout.host_of[via]
    there, direct, on = (
        np.bincount(one * hosts + other, size, hosts * hosts).astype(np.int64)
        for one, other in ((a, c), (a, b), (c, b))
    )
    return np.array([there, total - direct, on])


def _phased_blocks(blocks: Blocks, parts: Ints, layout: HostLayout, rows: StageRows) -> _PhasedBlocks:
    """The blocks on the machine with three phases; `parts` are the rows of `relayed_parts`."""
    hosts, gpus = layout.hosts, layout.topology.num_gpus
    (block, offset, size, via), (a, b) = parts.T, np.divmod(_host_pairs(blocks, hosts), hosts)
    c, taken = layout.host_of[via], np.bincount(block, size, len(blocks)).astype(np.int64)
    rest, numbers = np.flatnonzero(blocks.bytes > taken), np.arange(len(parts))
    phase = np.repeat(np.arange(_PHASES), (len(parts), len(rest), len(parts)))
    source = np.concatenate((blocks.source[block], blocks.source[rest], via))
    sender, receiver = np.concatenate((a[block], a[rest], c)), np.concatenate((c, b[rest], b[block]))
    pair = (phase * hosts + sender) * _PHASES * hosts + phase * hosts + receiver
    when = _when(c * hosts + b[block], a[block], rows, hosts)
    order = np.lexsort((source, pair))
    origin = np.concatenate((block, rest, block))
    entry, count = _rows_of(origin[len(parts) :], blocks.to_ptr)
    to = np.concatenate((via, blocks.to[entry]))
    entry, count = _rows_of(order, pointers(np.concatenate((np.ones(len(parts), np.int64), count))))
    phased = Blocks(
        np.searchsorted(pair[order], np.arange((_PHASES * hosts) ** 2 + 1)).astype(np.int64),
        (source + phase * gpus)[order].astype(np.int32),
        np.concatenate((size, (blocks.bytes - taken)[rest], size))[order],
        pointers(count),
        (to[entry] + np.repeat(phase[order], count) * gpus).astype(np.int32),
    )
    offset, part = np.concatenate((offset, taken[rest], offset)), np.concatenate((numbers, 0 * rest - 1, numbers))
    when = np.concatenate((when, np.zeros(len(rest)), when))
    return _PhasedBlocks(phased, phase[order], origin[order], offset[order], part[order], when[order])


def _when(pair: Ints, sender: Ints, rows: StageRows, hosts: int) -> Floats:
    """When a third host sends each part on; `pair` is the pair of the third and the receiving host."""
    row, third = np.nonzero(rows.to[:, -hosts:] >= 0)
    on = third * hosts + rows.to[row, third - hosts] % hosts
    begin, end = np.full(hosts * hosts, np.inf), np.zeros(hosts * hosts)
    np.minimum.at(begin, on, rows.start[row])
    np.maximum.at(end, on, rows.end[row])
    key = pair * hosts + sender
    order = np.argsort(key, kind="stable")
    _, first, count = np.unique(key[order], return_index=True, return_counts=True)
    place = np.empty(len(pair))
    place[order] = (np.arange(len(pair)) - np.repeat(first, count)) / np.repeat(count, count)
    begin = np.minimum(begin, end)
    result: Floats = begin[pair] + place * (end - begin)[pair]
    return result


def _lane_bytes(amount: Ints, share: Floats, machine: PhasedMachine, unit_bytes: int) -> Ints:
    """The bytes of each lane in each phase: the same share of each for all lanes of two hosts."""
    hosts = machine.real.hosts
    part = (amount / np.maximum(amount.sum(axis=0), 1.0))[:, machine.real_tables.lane_key]
    square = np.zeros((_PHASES, hosts, _PHASES, hosts), dtype=np.int64)
    for phase in range(_PHASES):
        square[phase, :, phase, :] = amount[phase].reshape(hosts, hosts)
    return whole_lanes((share * part).reshape(-1), square.reshape(-1), machine.layout.lane_ptr, unit_bytes, False)


def _stage_rows(
    lane_bytes: Ints, layout: HostLayout, tables: PlannerTables, params: PlanParams
) -> tuple[StageRows, float]:
    """The stages of all rails as rows of the machine with three phases, and the length of the longest ones."""
    hosts, found, longest = layout.hosts, list[tuple[NDArray[Any], ...]](), 0.0
    each = lane_bytes.reshape(_PHASES, -1)
    part = each / np.maximum(each.sum(axis=0), 1.0)
    for rail in range(layout.rails):
        load, parts = np.zeros(hosts * hosts), np.zeros((_PHASES, hosts * hosts))
        here = np.flatnonzero(layout.lane_rail == rail)
        load[tables.lane_key[here]] = each.sum(axis=0)[here] * tables.lane_ps[here]
        parts[:, tables.lane_key[here]] = part[:, here]
        square = load.reshape(hosts, hosts)
        receiver, time, length = decompose(square, params.residual, tables.no_stages, 2 * hosts * hosts + 8)
        to, sent, start, end = stage_rows(square, receiver, time, np.array(params.cuts) * length)
        found.append((*phased_rows(to, sent, parts), start, end, np.full(len(to), rail)))
        longest = max(longest, float(end.max(initial=0.0)))
    to, sent, start, end, rail_of = map(np.concatenate, zip(*found, strict=True))
    members = np.eye(layout.rails, dtype=np.int64)
    return StageRows(np.argsort(start, kind="stable"), rail_of, to, sent, start, end, members), longest


def _chunks(chunks: Chunks, phased: _PhasedBlocks, parts: Ints) -> Chunks:
    """The chunks of the blocks: relayed parts are divided where the chunks before and behind the third host are."""
    part = phased.part[chunks.block]
    base = pointers(parts[:, 2])  # all relayed parts as one row of bytes
    plain = np.flatnonzero(part < 0)
    first, last = (np.flatnonzero((part >= 0) & (phased.phase[chunks.block] == p)) for p in (0, _PHASES - 1))
    place = base[part] + chunks.offset
    first, last = first[np.argsort(place[first])], last[np.argsort(place[last])]
    begin = np.union1d(place[first], place[last])
    there, on = (rows[np.searchsorted(place[rows], begin, "right") - 1] for rows in (first, last))
    rows = np.concatenate((plain, on))
    entry, count = _rows_of(rows, chunks.entry_ptr)
    block = chunks.block[rows]
    offset = chunks.offset[rows] + phased.offset[block]
    offset[len(plain) :] += begin - place[on]
    relays = Relays(
        len(plain) + np.arange(len(on)), chunks.gather[there].astype(np.int64), chunks.cross[there].astype(np.int64),
        chunks.entry_message[chunks.entry_ptr[there]].astype(np.int64),
    )  # fmt: skip
    return Chunks(
        phased.origin[block].astype(np.int32), offset,
        np.concatenate((chunks.bytes[plain], np.diff(np.append(begin, base[-1])))), chunks.gather[rows],
        chunks.cross[rows], pointers(count), chunks.entry_message[entry], relays,
    )  # fmt: skip
