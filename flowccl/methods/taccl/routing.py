"""Stage 1: on which arcs each chunk goes, without order (TACCL section 4.1, appendix A.1). docs/methods/taccl.md."""

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.taccl.choices import Ways
from flowccl.methods.taccl.logical import Ints
from flowccl.methods.taccl.orbits import orbits
from flowccl.solver import ProgramBuilder, Solution, SolverOptions, VariableBlock, solve

_INCLINATION = 1e-4  # share of the finish that all connections of switches together weigh
_GAP = 0.01


@dataclass(frozen=True, eq=False)
class _Program:
    """The blocks of the path encoding: one variable for each orbit of pairs, and of (chunk, node)."""

    model: ProgramBuilder
    sent: VariableBlock
    start: VariableBlock
    finish: VariableBlock
    used: VariableBlock
    keys: Ints
    key_first: Ints
    arc_orbit: Ints


def path_encoding(
    ways: Ways, known: NDArray[np.bool_], options: SolverOptions, solver: str
) -> tuple[NDArray[np.bool_], Solution]:
    """The pairs that are sent, and what the solver said; `known` is a choice to start from, alike on every orbit."""
    began = time.monotonic()
    horizon = _finish_of(ways, known)
    program = _program(ways, horizon)
    point = _point(ways, program, known, horizon)
    left_s = max(options.time_limit_s - (time.monotonic() - began), 0.1)  # building took its part
    options = replace(options, start=point, gap=max(options.gap, _GAP), time_limit_s=left_s)
    solution = solve(program.model.build(), options, solver)
    if not solution.has_point:
        return known, solution
    return np.asarray(solution.value(program.sent) > 0.5)[ways.pair_orbits[0]], solution


def _finish_of(ways: Ways, known: NDArray[np.bool_]) -> float:
    """The relaxed finish of a choice: the longest way, or the busiest link."""
    return max(float(_arrivals(ways, known).max(initial=0)), float(_busiest(ways, known)), 1.0)


def _arrivals(ways: Ways, known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """When each send arrives if nothing is in its way."""
    pairs, before = ways.sends(known)
    arrival = np.zeros(len(pairs), dtype=np.int64)
    for i in _parents_first(before):
        arrival[i] = ways.takes_ps[pairs[i]] + (arrival[before[i]] if before[i] >= 0 else 0)
    return arrival


def _parents_first(before: NDArray[np.int64]) -> list[int]:
    depth = np.zeros(len(before), dtype=np.int64)
    for i in range(len(before)):
        at, steps = i, 0
        while before[at] >= 0:
            at, steps = int(before[at]), steps + 1
        depth[i] = steps
    order: list[int] = np.argsort(depth, kind="stable").tolist()
    return order


def _busiest(ways: Ways, known: NDArray[np.bool_]) -> int:
    pair, resource, held = ways.loads
    load = np.bincount(resource[known[pair]], held[known[pair]], ways.resources)
    return int(load.max(initial=0))


def _program(ways: Ways, horizon: float) -> _Program:
    """The program, times as shares of the horizon."""
    demand, logical, nodes = ways.demand, ways.logical, ways.nodes
    orbit, first = ways.pair_orbits
    into = ways.chunk * nodes + logical.dst[ways.arc]
    out = ways.chunk * nodes + logical.src[ways.arc]
    source = demand.source + np.arange(len(demand)) * nodes
    keys = np.unique(np.concatenate((into, source)))
    images = [turn.chunk[keys // nodes] * nodes + turn.node[keys % nodes] for turn in ways.rotations]
    key_orbit, key_first = orbits(keys, images)
    at_into, at_out = np.searchsorted(keys, into), np.minimum(np.searchsorted(keys, out), len(keys) - 1)
    reached = keys[at_out] == out  # nobody brings the chunk to the other ends

    model = ProgramBuilder()
    sent = model.variables("sent", (len(first),), upper=np.where(reached[first], 1.0, 0.0), integer=True)
    is_source = np.isin(keys[key_first], source)
    start = model.variables("start", (len(key_first),), upper=np.where(is_source, 0.0, 1.0))
    finish = model.variables("finish", (), upper=1.0, cost=1.0)

    # A node gets a chunk once if it wants it, at most once else.
    wanted = demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank
    wants = np.isin(keys[key_first], wanted)
    got = model.rows("get", (len(key_first),), lower=np.where(wants, 1.0, 0.0), upper=np.where(is_source, 0.0, 1.0))
    rows = np.isin(at_into, key_first)
    place = np.full(len(keys), -1, dtype=np.int64)
    place[key_first] = np.arange(len(key_first))
    got.add_at(place[at_into[rows]], sent[orbit[rows]])

    # A node sends only what it gets.
    relays = first[reached[first] & ~np.isin(out[first], source)]
    owns = model.rows("send what you get", (len(relays),), upper=0.0).add(sent[orbit[relays]])
    row, pair = _matches(out[relays], into)
    owns.add_at(row, sent[orbit[pair]], times=-1.0)

    # A chunk is at the end of an arc that it takes no earlier than at its start and the time of the arc.
    usable = first[reached[first]]
    takes = ways.takes_ps[usable] / horizon
    later = model.rows("arrive", (len(usable),), lower=-1.0)
    later.add(start[key_orbit[at_into[usable]]]).add(start[key_orbit[at_out[usable]]], times=-1.0)
    later.add(sent[orbit[usable]], times=-1.0 - takes)

    # The finish is after every arrival and after all that any link or limit carries.
    model.rows("arrivals", (len(key_first),), lower=0.0, where=wants).add(finish).add(start, times=-1.0)
    pair, resource, held = ways.loads
    loads = model.rows("loads", (ways.resources,), lower=0.0).add(finish)
    loads.add_at(resource, sent[orbit[pair]], times=-held / horizon)
    used, arc_orbit = _add_inclination(ways, model, sent)
    return _Program(model, sent, start, finish, used, keys, key_first, arc_orbit)


def _matches(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All (place in wanted, place in keys) with equal values."""
    order = np.argsort(keys, kind="stable")
    low, high = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(wanted)), high - low)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    return row, order[np.repeat(low, high - low) + inside]


def _add_inclination(ways: Ways, model: ProgramBuilder, sent: VariableBlock) -> tuple[VariableBlock, Ints]:
    """Connections of switches that are used, as few as possible or as many, after the finish; the orbits of arcs."""
    logical = ways.logical
    weight = np.zeros(len(logical))
    for switch in logical.sketch.switches:
        inside = np.isin(logical.src, switch.gpus) & np.isin(logical.dst, switch.gpus)
        weight[inside] = {"uc-min": 1.0, "uc-max": -1.0, "none": 0.0}[switch.inclination]
    arc_orbit, arc_first = orbits(np.arange(len(logical)), [turn.arc for turn in ways.rotations])
    weight = weight[arc_first]
    cost = _INCLINATION / max(int(np.count_nonzero(weight)), 1) * weight
    used = model.variables("used", (len(arc_first),), upper=1.0, cost=cost, where=weight != 0)
    _, first = ways.pair_orbits
    many = weight[arc_orbit[ways.arc[first]]]
    few = np.flatnonzero(many > 0)
    model.rows("few", (len(few),), lower=0.0).add(used[arc_orbit[ways.arc[first[few]]]]).add(sent[few], times=-1.0)
    least = model.rows("many", (len(arc_first),), upper=0.0, where=weight < 0).add(used)
    plenty = np.flatnonzero(many < 0)
    least.add_at(arc_orbit[ways.arc[first[plenty]]], sent[plenty], times=-1.0)
    return used, arc_orbit


def _point(ways: Ways, program: _Program, known: NDArray[np.bool_], horizon: float) -> NDArray[np.float64]:
    """A choice of pairs as a point of the program."""
    _, first = ways.pair_orbits
    pairs, _ = ways.sends(known)
    arrival = _arrivals(ways, known) / horizon
    into = ways.chunk[pairs] * ways.nodes + ways.logical.dst[ways.arc[pairs]]
    start = np.zeros(len(program.keys))
    start[np.searchsorted(program.keys, into)] = arrival
    used = np.zeros(program.used.shape)
    np.maximum.at(used, program.arc_orbit[ways.arc[pairs]], 1.0)
    blocks: list[tuple[VariableBlock, NDArray[np.float64]]] = [
        (program.sent, known[first].astype(np.float64)),
        (program.start, start[program.key_first]),
        (program.used, np.where(program.used.exists, used, 0.0)),
        (program.finish, np.asarray(1.0)),
    ]
    return program.model.build().point(*blocks)
