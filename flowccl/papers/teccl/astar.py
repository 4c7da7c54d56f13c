"""Rounds (TE-CCL section 4.2, appendix D): each round brings chunks as close as possible to their destinations.

A round is the program with copies over a few epochs, without the requirement to finish. Its sends may arrive in later
rounds, and a slow link may still be busy then: both are part of the state that is passed on to the next round. The
reward is the paper's: 1 for a chunk that reaches a destination, less for a chunk that gets nearer, and more for early
arrivals.
"""

from collections.abc import Iterator

import numpy as np

from flowccl.errors import NothingFoundError
from flowccl.papers.teccl.copies import NEVER, ChunkState, CopyProgram
from flowccl.papers.teccl.epochs import Grid, check_buffers, chunk_size, make_grid
from flowccl.papers.teccl.grid_bound import Distances, grid_bound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.plan import GridPlan, transfers_of
from flowccl.papers.teccl.readback import read_back
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import solve

NEARER_REWARD = 0.5
"""Reward for being next to the destination, relative to 1 for reaching it (the paper's gamma, below 1)."""
_ROUND_GAP = 0.01
_ROUND_TIME_FRACTION = 0.5  # fraction of the time left that one round may take


def astar(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield one schedule: rounds until every chunk has arrived or is on its way."""
    topology, demand = problem.topology, problem.demand
    options = TecclOptions.of(context.options)
    grid = make_grid(topology, chunk_size(demand), options)
    check_buffers(grid, demand, grid.chunk_bytes)
    distances, bound = Distances.of(grid), grid_bound(grid, demand)
    length = options.round_epochs or max(2, int(grid.delay.max()))
    state, base, rows = ChunkState.start(demand, topology), 0, []
    solver_s, rounds = 0.0, 0
    while state.missing.any():
        if context.budget.left_s <= 0 or context.budget.should_stop():
            left = int(state.missing.sum())
            raise NothingFoundError(
                f"the time limit ended the search after {rounds} rounds, {left} deliveries are missing;"
                f" at least {bound.epochs} epochs are needed because {bound.witness}"
            )
        began = context.budget.elapsed_s
        sends = _round(grid, state, distances, length, context, options)
        solver_s += context.budget.elapsed_s - began
        rounds += 1
        if not len(sends[0]):
            length *= 2  # no chunk gets nearer within this many epochs
            continue
        rows += [(c, links, base + k) for c, links, k in transfers_of(grid, *sends)]
        state, base = _next_state(grid, state, sends, length), base + length
    plan = GridPlan.of(grid, demand, rows)
    schedule = read_back(plan, "astar")
    context.notes |= {
        "epoch_us": grid.epoch_us,
        "epochs": plan.epochs,
        "grid_finish_us": plan.epochs * grid.epoch_us,
        "epochs_bound": bound.epochs,
        "epochs_bound_reason": bound.witness,
        "grid_gap": plan.epochs / max(bound.epochs, 1) - 1,
        "grid_status": "optimal" if plan.epochs == bound.epochs else "feasible",
        "rounds": rounds,
        "round_epochs": length,
        "solver_s": round(solver_s, 3),
        "plan_finish_us": schedule.finish_us,
        "schedule_by": "plan",
    }
    yield schedule


RoundSends = tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", ...]


def _round(
    grid: Grid, state: ChunkState, distances: Distances, length: int, context: SearchContext, options: TecclOptions
) -> RoundSends:
    """Return (chunk, arc, epoch) of the sends of one round."""
    program = CopyProgram(grid, state, distances, length, options, finish=False)
    _reward(program, distances)
    seconds = max(_ROUND_TIME_FRACTION * context.budget.left_s, 0.1)
    settings = options.of_solve(context, seconds, gap=max(options.early_stop, _ROUND_GAP))
    solution = solve(program.model.build(), settings, options.solver)
    if not solution.has_point:
        raise NothingFoundError(
            f"a round found no solution in {seconds:.1f} s; increase --time-limit or set --round-epochs"
        )
    return np.nonzero(solution.value(program.send) > 0.5)


def _reward(program: CopyProgram, distances: Distances) -> None:
    """Reward arrivals by 1 and progress by a fraction of it, early arrivals a little more; each send costs a little."""
    column, chunk, arc, at = program.arrivals()
    node, missing = program.grid.head[arc], program.state.missing
    there = missing[chunk, node]
    program.model.add_cost(column[there], 1.0 + 1.0 / (1.0 + at[there]))
    stores = program.grid.topology.stores[node]
    has_chunk = program.state.ready < NEVER
    away = np.where(has_chunk[:, :, None], distances.between[None, :, :], np.inf).min(axis=1)  # (chunks, nodes)
    pairs = np.argwhere(missing)
    for target in np.unique(pairs[:, 1]).tolist():
        sources = pairs[pairs[:, 1] == target, 0]
        gain = NEARER_REWARD / (1.0 + distances.between[None, :, target]) - NEARER_REWARD / (
            1.0 + away[sources, target, None]
        )
        useful = (gain > 1e-9) & ~has_chunk[sources] & program.grid.topology.stores
        useful[:, target] = False
        if not useful.any():
            continue
        near = program.model.variables(f"nearer to {target}", useful.shape, upper=1, cost=gain, where=useful)
        program.model.rows("one is nearest", len(sources), upper=1).add(near, sum_axis=1)
        rows = program.model.rows("be there to be near", useful.shape, upper=0, where=useful).add(near)
        place = np.full(len(missing), -1)
        place[sources] = np.arange(len(sources))
        there = stores & (place[chunk] >= 0)
        rows.add_at((place[chunk[there]], node[there]), column[there], times=-1)
    program.model.add_cost(column, -1e-4)


def _next_state(grid: Grid, state: ChunkState, sends: RoundSends, length: int) -> ChunkState:
    """Return the state at the start of the next round."""
    chunk, arc, epoch = sends
    ready = np.where(state.ready < NEVER, np.maximum(state.ready - length, 0), NEVER)
    stored = grid.topology.stores[grid.head[arc]]
    arrival = np.maximum(epoch + grid.delay[arc] - length, 0)
    np.minimum.at(ready, (chunk[stored], grid.head[arc[stored]]), arrival[stored])
    most = int(grid.busy_epochs.max() + grid.hop_shift.max(initial=0)) + state.busy.shape[1]
    busy = np.zeros((len(grid.topology.links), most))
    busy[:, : max(state.busy.shape[1] - length, 0)] += state.busy[:, length:]
    for a, k in zip(arc.tolist(), epoch.tolist(), strict=True):
        for hop in range(int(grid.routes.ptr[a]), int(grid.routes.ptr[a + 1])):
            first = k + int(grid.hop_shift[hop]) - length
            until = first + int(grid.busy_epochs[a])
            busy[grid.hop_link[hop], max(first, 0) : max(until, 0)] += 1.0 / int(grid.capacity[a])
    used = np.flatnonzero(busy.any(axis=0))
    return ChunkState(ready, state.wanted, busy[:, : int(used[-1]) + 1 if len(used) else 0])
