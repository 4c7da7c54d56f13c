"""Optima on the grid: DGX1 as in TE-CCL's table 7, and random machines against independent searches."""

import numpy as np
import pytest
from scipy.optimize import linprog

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.papers.teccl.copies import ChunkState, CopyProgram
from flowccl.papers.teccl.epochs import chunk_size, make_grid
from flowccl.papers.teccl.grid_bound import Distances, grid_bound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.solver import Status, solve
from flowccl.topology.machines import machine
from tests.papers.teccl_cases import MB, fewest_epochs, random_grid_machine, run, without_latency

DGX1 = without_latency(machine("dgx1"))


def dgx1_demand(name, chunks):
    return collective(name, 8, 25_000 * chunks * 8, chunks)


@pytest.mark.parametrize("chunks", range(1, 7))
def test_table_7_allgather_is_solved_and_proved(chunks):
    _, notes = run("milp", DGX1, dgx1_demand("allgather", chunks), epoch="slow", warm_start=False, threads=2)
    assert (notes["epochs"], notes["epochs_bound"], notes["grid_status"]) == (chunks + 1, chunks + 1, "optimal")


@pytest.mark.parametrize(("chunks", "epochs"), [(1, 3), (2, 6), (3, 8)])
def test_table_7_alltoall_is_found_and_proved(chunks, epochs):
    _, notes = run("milp", DGX1, dgx1_demand("alltoall", chunks), epoch="slow")
    assert (notes["epochs"], notes["epochs_bound"]) == (epochs, epochs)


@pytest.mark.slow
def test_table_7_alltoall_with_8_chunks_by_rates():
    _, notes = run("lp", DGX1, dgx1_demand("alltoall", 8), epoch="slow", warm_start=False)
    assert (notes["epochs"], notes["epochs_bound"]) == (22, 22)


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_one_epoch_less_has_no_solution_by_the_program_itself(chunks):
    """The bound proves it by a cut; the solver must agree."""
    demand, options = dgx1_demand("allgather", chunks), TecclOptions(epoch="slow")
    grid = make_grid(DGX1, chunk_size(demand), options)
    program = CopyProgram(grid, ChunkState.start(demand, DGX1), Distances.of(grid), chunks, options)
    assert solve(program.model.build()).status is Status.INFEASIBLE


# -- random machines --------------------------------------------------------------------------------------------------


def random_demand(rng, gpus):
    """Two or three chunks of 1 MB, each for one or more of the others."""
    chunks = []
    for _ in range(int(rng.integers(2, 4))):
        source, *others = (int(rank) for rank in rng.permutation(gpus))
        chunks.append(Chunk(bytes=MB, sources=(source,), destinations=tuple(others[: int(rng.integers(1, gpus))])))
    return Demand.from_chunks("custom", gpus, chunks)


@pytest.mark.parametrize("seed", range(12))
def test_milp_equals_exhaustive_search(seed):
    rng = np.random.default_rng(seed)
    topology = random_grid_machine(rng, 3)
    demand = random_demand(rng, 3)
    best = fewest_epochs(topology, demand, 14)
    for start in (True, False):
        _, notes = run("milp", topology, demand, epoch="1s", warm_start=start)
        assert (notes["epochs"], notes["epochs_bound"], notes["grid_status"]) == (best, best, "optimal")
    _, notes = run("astar", topology, demand, epoch="1s")
    assert best <= notes["epochs"] <= 2 * best + 1


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_is_never_above_the_optimum(seed):
    rng = np.random.default_rng(100 + seed)
    topology = random_grid_machine(rng, 3)
    demand = random_demand(rng, 3)
    grid = make_grid(topology, MB, TecclOptions(epoch="1s"))
    assert grid_bound(grid, demand).epochs <= fewest_epochs(topology, demand, 14)


@pytest.mark.parametrize("seed", range(6))
def test_lp_equals_an_independent_lp(seed):
    rng = np.random.default_rng(seed)
    topology = random_grid_machine(rng, 4)
    demand = collective("alltoall", 4, 4 * MB)
    best = next(k for k in range(1, 40) if rates_feasible(topology, demand, k))
    schedule, notes = run("lp", topology, demand, epoch="1s", warm_start=False)
    assert (notes["epochs"], notes["epochs_bound"]) == (best, best)
    assert schedule.finish_us <= best * 1e6 * 1.25


def rates_feasible(topology, demand, epochs):
    """Every pair of GPUs is a commodity, every (commodity, node, epoch) an equation; solved by scipy."""
    pairs = [(int(demand.source[c]), int(demand.destinations(c)[0])) for c in range(len(demand))]
    links, nodes = topology.links, len(topology.nodes)
    delay = [1 + int(np.ceil(link.latency_us / 1e6)) for link in links]
    share = [link.bandwidth_GBps * 1e9 / MB for link in links]
    columns: dict[tuple, int] = {}
    for p in range(len(pairs)):
        columns |= {("send", p, i, k): 0 for i in range(len(links)) for k in range(epochs) if k + delay[i] <= epochs}
        columns |= {("keep", p, n, k): 0 for n in range(nodes) for k in range(epochs)}
    columns = {key: place for place, key in enumerate(columns)}
    equal = np.zeros((len(pairs) * nodes * (epochs + 1), len(columns)))
    total = np.zeros(len(equal))
    capacity, most = np.zeros((len(links) * epochs, len(columns))), np.repeat(share, epochs)

    def row(p, n, k):
        return (p * nodes + n) * (epochs + 1) + k

    for (kind, p, x, k), place in columns.items():
        if kind == "keep":  # from epoch k to k + 1
            equal[row(p, x, k), place] -= 1
            equal[row(p, x, k + 1), place] += 1
        else:
            equal[row(p, links[x].src, k), place] -= 1
            equal[row(p, links[x].dst, k + delay[x]), place] += 1
            capacity[x * epochs + k, place] = 1
    for p, (source, end) in enumerate(pairs):
        total[row(p, source, 0)] -= 1
        total[row(p, end, epochs)] += 1
    answer = linprog(np.zeros(len(columns)), A_ub=capacity, b_ub=most, A_eq=equal, b_eq=total, method="highs")
    return answer.status == 0


def test_a_plan_of_epochs_much_longer_than_transfers_is_dispatched_anew():
    """In the order of the plan, the transfers would take all of its 4 epochs, 10002.6 us."""
    topology = machine("dgx2:2")
    schedule, notes = run("milp", topology, collective("allgather", 32, 1000 * MB, 1), epoch="slow")
    assert notes["epochs"] == 4
    assert notes["schedule_by"] == "plan"
    assert schedule.finish_us == pytest.approx(7750.7)
