"""Optimal flows of an alltoall, by column generation, then whole chunks on paths, then periodic pipelines.

The program is that of `trees.py`, with other columns: a path from one source to each of its destinations, over switches
and over GPUs that relay. For given prices the cheapest one consists of shortest paths. A path that no GPU relays is
one transfer, so that all chunks can start at once, each at its share of the bandwidth: then the completion time is that
of the program, apart from latency and from whole chunks.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.chunk_transfers import ChunkTransfers
from flowccl.methods.rates.network import F64, Path, PricedNetwork
from flowccl.methods.rates.pipeline import ChunkStream, Pipelines
from flowccl.methods.rates.proof import report_path_bound
from flowccl.methods.rates.rounding import Columns, balanced, deal_columns
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import ProgramBuilder, Session, SolverOptions

_CLOSE = 0.002  # relative distance of the time to its lower bound at which columns suffice
_HOP_WEIGHT = 1e-3  # part of the time that one more transfer for all data costs
_SMOOTH = 0.5  # weight of the prices of the best bound (Wentges)
_NEGLIGIBLE = 1e-6
_RATES_SHARE = 0.2  # of the time limit
_MOST_LISTED = 10_000  # transfers that the engine is given
_LEAST_PARTS = (0.0, 0.1, 0.5)  # of the main path of a pair: others with less data are left out
_MOST_STREAMED = 50_000  # chunks of pipelines
_NAME = "packed-paths"


@dataclass(frozen=True, slots=True)
class PathRates:
    """For each pair (source, destination), paths and the part of its data on each; the time of all data and a bound."""

    paths: dict[tuple[int, int], dict[Path, float]]
    time: float
    bound: float
    price: F64


def packed_paths(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of chunks that have one source and one destination each."""
    topology, demand = problem.topology, problem.demand
    if demand.reduces or not demand.is_unicast:
        raise DemandError(f"method packed-paths is for chunks with one destination each; got {demand.collective}")
    network = PricedNetwork(topology)
    key = _key_of(network, demand)
    if key not in context.incumbents.hints:
        _rates_of(network, demand, context)
        yield None  # the rates serve all chunk counts
    rates = _rates_of(network, demand, context)
    columns, plans = _columns(network, rates)
    pipelines = (one for least in _LEAST_PARTS for one in _pipelines(network, demand, columns, plans, least))
    found = min(pipelines, key=lambda one: one.time_ps)
    best = found.schedule(_NAME)
    yield best
    random, best_ps = np.random.default_rng(context.seed), best.finish_ps
    engine = Engine(best)
    start, noise = engine.schedule.start_ps, 0.0
    while len(start) <= _MOST_LISTED:
        late = noise * engine.schedule.finish_ps * random.uniform(-1, 1, len(start)) - engine.tail_ps
        yield engine.run(start + late, float(random.choice(LEAST_RATES)), best_ps)
        noise = power_of_ten(float(random.uniform(-3.0, 0.0)))


def useful_chunks(problem: Problem, context: SearchContext) -> int:
    """A number of chunks with which they fit to the rates: a power of two."""
    pairs = max(len(problem.demand) // problem.demand.pieces, 1)
    return 1 << max(int(_MOST_STREAMED / pairs).bit_length() - 1, 0)


def _data_of(demand: Demand, count: int) -> F64:
    """The part of the data of each pair of GPUs."""
    data = np.zeros((count, count))
    np.add.at(data, (demand.source, demand.destination_rank), demand.chunk_bytes)
    np.fill_diagonal(data, 0.0)
    return np.asarray(data / data.sum())


def _key_of(network: PricedNetwork, demand: Demand) -> str:
    data = _data_of(demand, network.topology.num_gpus)
    return f"{_NAME} {network.topology.fingerprint} {hash(np.round(data, 9).tobytes())}"


def _rates_of(network: PricedNetwork, demand: Demand, context: SearchContext) -> PathRates:
    """The rates of the demand, found once for all chunk counts."""
    key = _key_of(network, demand)
    found = context.incumbents.hints.get(key)
    if not isinstance(found, PathRates):
        found = path_rates(network, _data_of(demand, network.topology.num_gpus), context.budget.part_s(_RATES_SHARE))
        context.incumbents.hints[key] = found
        report_path_bound(network, demand, found.price, context.incumbents)
    return found


def path_rates(network: PricedNetwork, data: F64, time_limit_s: float) -> PathRates:
    """Return paths and rates for the data between all pairs, with a total of one."""
    network.check_connected()
    until = time.monotonic() + time_limit_s
    master = _FlowMaster(network, data, until)
    load = np.zeros(len(network.capacity))
    for _ in range(8):  # prices that follow the load of what was chosen before
        relative = load / network.capacity / max(float((load / network.capacity).max()), 1e-300)
        load += master.add(master.priced((0.02 + relative**4) / network.capacity)[1])
    solved = master.solve()
    if solved is None:
        raise DemandError(f"method packed-paths found no rates in {time_limit_s:.3g} s")
    total, price, amount = solved
    bound, center = 0.0, price
    while True:
        asked = _SMOOTH * center + (1 - _SMOOTH) * price
        value, found = master.priced(asked)
        if value <= bound:
            asked = price
            value, found = master.priced(price)
        if value > bound:
            bound, center = value, asked
        if total <= bound * (1 + _CLOSE) or time.monotonic() > until:
            break
        before = len(master.routings)
        master.add(found)
        if len(master.routings) == before:  # the smoothed prices have nothing new: use the prices themselves
            value, found = master.priced(price)
            if value > bound:
                bound, center = value, price
            master.add(found)
        if len(master.routings) == before:
            break
        solved = master.solve()
        if solved is None:
            break
        total, price, amount = solved
    paths: dict[tuple[int, int], dict[Path, float]] = {}
    for (source, routing), part in zip(master.routings, amount, strict=False):
        if part > _NEGLIGIBLE:
            for end, path in routing:
                rate_of = paths.setdefault((source, end), {})
                rate_of[path] = rate_of.get(path, 0.0) + float(part)
    return PathRates(paths, total, bound, center)


Routing = tuple[tuple[int, Path], ...]
"""The path to each destination of a source."""


class _FlowMaster:
    """The program: the time, and for each source a combination of routings."""

    def __init__(self, network: PricedNetwork, data: F64, until: float) -> None:
        self.network, self.data, self.until = network, data, until
        self.sources = np.flatnonzero(data.sum(axis=1))
        self.row = {int(source): i for i, source in enumerate(self.sources)}
        self.routings = list[tuple[int, Routing]]()
        self.known = set[tuple[int, Routing]]()
        model = ProgramBuilder()
        total = model.variables("time", cost=1)
        model.rows("resource", len(network.capacity), upper=0).add(total, times=-network.capacity)
        model.rows("source", len(self.sources), equals=1)
        self.session = Session(model.build(), SolverOptions(method="simplex"))
        self.scale = float((data.sum(axis=1) / 1.0).max() / network.capacity.max())

    def solve(self) -> tuple[float, F64, F64] | None:
        """The least time with the routings so far, the prices of resources, and the part of each routing.

        None where the time is over before that: some programs take a hundred times as long as others of their size.
        """
        solution = self.session.solve(max(self.until - time.monotonic(), 0.0))
        if solution.values is None or solution.duals is None:
            return None
        price = np.maximum(-solution.duals[: len(self.network.capacity)], 0.0)
        price /= max(float(price @ self.network.capacity), 1e-300)
        return float(solution.values[0]), price, solution.values[1:]

    def priced(self, price: F64) -> tuple[float, list[tuple[int, Routing]]]:
        """The least cost of all data for these prices, and shortest paths from every source."""
        price = price / max(float(price @ self.network.capacity), 1e-300)
        least, last = self.network.routes(price, through_gpus=True)
        count = self.network.topology.num_gpus
        found = []
        for source in self.sources.tolist():
            ends = np.flatnonzero(self.data[source]).tolist()
            found.append((source, tuple((end, self.network.path(last, source, end)) for end in ends)))
        return float((least[:, :count] * self.data).sum()), found

    def add(self, found: list[tuple[int, Routing]]) -> F64:
        """Add the routings that are new; return the load of all that were found."""
        loads = [self._load(source, routing) for source, routing in found]
        new = [j for j, one in enumerate(found) if one not in self.known]
        self.known.update(found)
        if new:
            from scipy import sparse

            resources = len(self.network.capacity)
            entries = np.zeros((resources + len(self.sources), len(new)))
            for column, j in enumerate(new):
                entries[:resources, column] = loads[j]
                entries[resources + self.row[found[j][0]], column] = 1.0
            hops = [sum(self.data[found[j][0], end] * self._hops(path) for end, path in found[j][1]) for j in new]
            self.session.add_columns(np.array(hops) * _HOP_WEIGHT * self.scale, sparse.csc_array(entries))
            self.routings += [found[j] for j in new]
        return np.asarray(sum(loads, np.zeros(len(self.network.capacity))))

    def _load(self, source: int, routing: Routing) -> F64:
        load = np.zeros(len(self.network.topology.links))
        for end, path in routing:
            load[list(path)] += self.data[source, end]
        return self.network.with_limits(load)

    def _hops(self, path: Path) -> int:
        topology = self.network.topology
        return int(topology.stores[topology.link_dst[list(path)]].sum())


def _columns(network: PricedNetwork, rates: PathRates) -> tuple[Columns, list[ChunkTransfers]]:
    """The paths of all pairs as columns, whose group is source * GPUs + destination, and their transfers."""
    count = network.topology.num_gpus
    rows = [(a * count + b, path, part) for (a, b), paths in rates.paths.items() for path, part in paths.items()]
    loads = tuple(network.load(np.array(path)) for _, path, _ in rows)
    group, weight = np.array([row[0] for row in rows]), np.array([row[2] for row in rows])
    return Columns.of(group, weight, loads), [_plan(network, path) for _, path, _ in rows]


def _plan(network: PricedNetwork, path: Path) -> ChunkTransfers:
    """The transfers of a path: one from each GPU on it to the next."""
    stores = network.topology.stores[network.topology.link_dst[list(path)]]
    ends = [0, *(np.flatnonzero(stores) + 1).tolist()]
    parts = [path[a:b] for a, b in pairwise(ends)]
    return ChunkTransfers.of(parts, range(len(parts)), list(pairwise(range(len(parts)))), reduce=False)


def _pipelines(
    network: PricedNetwork, demand: Demand, columns: Columns, plans: list[ChunkTransfers], least: float
) -> Iterator[Pipelines]:
    """The chunks of every pair on paths that have at least this part of the data of its main path."""
    pair = demand.source.astype(np.int64) * network.topology.num_gpus + demand.destination_rank
    columns = columns.with_parts(least)
    choice = deal_columns(columns, pair)
    for chosen in (choice, balanced(columns, pair, demand.chunk_bytes, network.capacity, choice)):
        order = np.argsort(chosen, kind="stable")
        chunks = np.split(order, np.flatnonzero(np.diff(chosen[order])) + 1)
        yield Pipelines(network, demand, [ChunkStream(plans[chosen[stream[0]]], stream) for stream in chunks])
