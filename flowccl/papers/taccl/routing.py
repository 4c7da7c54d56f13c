"""Stage 1: the arcs of each chunk, without order (TACCL section 4.1, appendix A.1). See docs/methods/taccl.md."""

import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.taccl.choices import RouteChoices
from flowccl.papers.taccl.logical import Ints
from flowccl.papers.taccl.orbits import orbits
from flowccl.solver import ProgramBuilder, Solution, SolverOptions, VariableBlock, solve

_SWITCH_WEIGHT = 1e-4  # total weight of all connections of switches, relative to the completion time
_GAP = 0.01


@dataclass(frozen=True, eq=False)
class _PathProgram:
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
    choices: RouteChoices, known: NDArray[np.bool_], options: SolverOptions, solver: str
) -> tuple[NDArray[np.bool_], Solution]:
    """Return the pairs that are sent and the solution; `known` is a choice to start from, invariant on orbits."""
    began = time.monotonic()
    horizon = _finish_of(choices, known)
    program = _program(choices, horizon)
    point = _point(choices, program, known, horizon)
    left_s = max(options.time_limit_s - (time.monotonic() - began), 0.1)  # less the time to build the program
    options = replace(options, start=point, gap=max(options.gap, _GAP), time_limit_s=left_s)
    solution = solve(program.model.build(), options, solver)
    if not solution.has_point:
        return known, solution
    return np.asarray(solution.value(program.sent) > 0.5)[choices.pair_orbits[0]], solution


def _finish_of(choices: RouteChoices, known: NDArray[np.bool_]) -> float:
    """The relaxed completion time of a choice: the longest path, or the busiest link."""
    return max(float(_arrivals(choices, known).max(initial=0)), float(_busiest(choices, known)), 1.0)


def _arrivals(choices: RouteChoices, known: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Arrival of each send if no link is shared."""
    pairs, before = choices.sends(known)
    arrival = np.zeros(len(pairs), dtype=np.int64)
    for i in _parents_first(before):
        arrival[i] = choices.takes_ps[pairs[i]] + (arrival[before[i]] if before[i] >= 0 else 0)
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


def _busiest(choices: RouteChoices, known: NDArray[np.bool_]) -> int:
    pair, resource, busy = choices.loads
    load = np.bincount(resource[known[pair]], busy[known[pair]], choices.resources)
    return int(load.max(initial=0))


def _program(choices: RouteChoices, horizon: float) -> _PathProgram:
    """Build the program, with times relative to the horizon."""
    demand, logical, nodes = choices.demand, choices.logical, choices.nodes
    orbit, first = choices.pair_orbits
    into = choices.chunk * nodes + logical.dst[choices.arc]
    out = choices.chunk * nodes + logical.src[choices.arc]
    source = demand.source + np.arange(len(demand)) * nodes
    keys = np.unique(np.concatenate((into, source)))
    images = [symmetry.chunk[keys // nodes] * nodes + symmetry.node[keys % nodes] for symmetry in choices.symmetries]
    key_orbit, key_first = orbits(keys, images)
    at_into, at_out = np.searchsorted(keys, into), np.minimum(np.searchsorted(keys, out), len(keys) - 1)
    reached = keys[at_out] == out  # the chunk cannot reach the tails of other arcs

    model = ProgramBuilder()
    sent = model.variables("sent", (len(first),), upper=np.where(reached[first], 1.0, 0.0), integer=True)
    is_source = np.isin(keys[key_first], source)
    start = model.variables("start", (len(key_first),), upper=np.where(is_source, 0.0, 1.0))
    finish = model.variables("finish", (), upper=1.0, cost=1.0)

    # A destination receives a chunk once, other nodes at most once.
    wanted = demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank
    wants = np.isin(keys[key_first], wanted)
    got = model.rows(
        "destination", (len(key_first),), lower=np.where(wants, 1.0, 0.0), upper=np.where(is_source, 0.0, 1.0)
    )
    rows = np.isin(at_into, key_first)
    place = np.full(len(keys), -1, dtype=np.int64)
    place[key_first] = np.arange(len(key_first))
    got.add_at(place[at_into[rows]], sent[orbit[rows]])

    # A node sends only chunks that it receives.
    relays = first[reached[first] & ~np.isin(out[first], source)]
    owns = model.rows("flow conservation", (len(relays),), upper=0.0).add(sent[orbit[relays]])
    row, pair = _matches(out[relays], into)
    owns.add_at(row, sent[orbit[pair]], times=-1.0)

    # A chunk reaches the head of an arc no earlier than its tail plus the time of the arc.
    usable = first[reached[first]]
    takes = choices.takes_ps[usable] / horizon
    later = model.rows("arrive", (len(usable),), lower=-1.0)
    later.add(start[key_orbit[at_into[usable]]]).add(start[key_orbit[at_out[usable]]], times=-1.0)
    later.add(sent[orbit[usable]], times=-1.0 - takes)

    # The completion time is at least every arrival and the load of every link and limit.
    model.rows("arrivals", (len(key_first),), lower=0.0, where=wants).add(finish).add(start, times=-1.0)
    pair, resource, busy = choices.loads
    loads = model.rows("loads", (choices.resources,), lower=0.0).add(finish)
    loads.add_at(resource, sent[orbit[pair]], times=-busy / horizon)
    used, arc_orbit = _add_switch_policy(choices, model, sent)
    return _PathProgram(model, sent, start, finish, used, keys, key_first, arc_orbit)


def _matches(wanted: NDArray[np.int64], keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All (index in wanted, index in keys) with equal values."""
    order = np.argsort(keys, kind="stable")
    low, high = (np.searchsorted(keys[order], wanted, side=side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(wanted)), high - low)
    inside = np.arange(len(row)) - np.repeat(np.cumsum(high - low) - (high - low), high - low)
    return row, order[np.repeat(low, high - low) + inside]


def _add_switch_policy(choices: RouteChoices, model: ProgramBuilder, sent: VariableBlock) -> tuple[VariableBlock, Ints]:
    """Minimize or maximize the connections of switches that are used, after the completion time.

    Return their variables and the orbits of arcs.
    """
    logical = choices.logical
    weight = np.zeros(len(logical))
    for switch in logical.sketch.switches:
        inside = np.isin(logical.src, switch.gpus) & np.isin(logical.dst, switch.gpus)
        weight[inside] = {"uc-min": 1.0, "uc-max": -1.0, "none": 0.0}[switch.inclination]
    arc_orbit, arc_first = orbits(np.arange(len(logical)), [symmetry.arc for symmetry in choices.symmetries])
    weight = weight[arc_first]
    cost = _SWITCH_WEIGHT / max(int(np.count_nonzero(weight)), 1) * weight
    used = model.variables("used", (len(arc_first),), upper=1.0, cost=cost, where=weight != 0)
    _, first = choices.pair_orbits
    many = weight[arc_orbit[choices.arc[first]]]
    few = np.flatnonzero(many > 0)
    model.rows("few", (len(few),), lower=0.0).add(used[arc_orbit[choices.arc[first[few]]]]).add(sent[few], times=-1.0)
    least = model.rows("many", (len(arc_first),), upper=0.0, where=weight < 0).add(used)
    plenty = np.flatnonzero(many < 0)
    least.add_at(arc_orbit[choices.arc[first[plenty]]], sent[plenty], times=-1.0)
    return used, arc_orbit


def _point(
    choices: RouteChoices, program: _PathProgram, known: NDArray[np.bool_], horizon: float
) -> NDArray[np.float64]:
    """Return a choice of pairs as a point of the program."""
    _, first = choices.pair_orbits
    pairs, _ = choices.sends(known)
    arrival = _arrivals(choices, known) / horizon
    into = choices.chunk[pairs] * choices.nodes + choices.logical.dst[choices.arc[pairs]]
    start = np.zeros(len(program.keys))
    start[np.searchsorted(program.keys, into)] = arrival
    used = np.zeros(program.used.shape)
    np.maximum.at(used, program.arc_orbit[choices.arc[pairs]], 1.0)
    blocks: list[tuple[VariableBlock, NDArray[np.float64]]] = [
        (program.sent, known[first].astype(np.float64)),
        (program.start, start[program.key_first]),
        (program.used, np.where(program.used.exists, used, 0.0)),
        (program.finish, np.asarray(1.0)),
    ]
    return program.model.build().point(*blocks)
