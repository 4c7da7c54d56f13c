"""HiGHS finds known optima, respects its limits, can be interrupted, and its solutions are checked."""

import itertools
import math
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from flowccl.errors import InputError
from flowccl.solver import (
    SOLVERS,
    ProgramBuilder,
    Session,
    Solution,
    SolverError,
    SolverOptions,
    Status,
    check_solution,
    highs,
    solve,
)


def two_products(maximize=True):
    """max 3x + 2y + 10 with x + y <= 4, x + 3y <= 7, x <= 3: x = 3, y = 1, dual prices 2 and 0."""
    sign = 1 if maximize else -1
    model = ProgramBuilder(maximize=maximize, offset=10 * sign)
    x = model.variables("x", 2, upper=[3, np.inf], cost=[3 * sign, 2 * sign])
    rows = model.rows("limits", 2, upper=[4, 7]).add(x[None], times=[[1, 1], [1, 3]], sum_axis=1)
    return model.build(), x, rows


def knapsack(maximize=True):
    """Weights 5, 4, 6, 3, capacity 10, values 10, 40, 30, 50: the optimum is items 1 and 3, 90."""
    model = ProgramBuilder(maximize=maximize)
    take = model.variables("take", 4, upper=1, integer=True, cost=[10, 40, 30, 50])
    model.rows("weight", upper=10).add(take, times=[5, 4, 6, 3], sum_axis=0)
    return model.build(), take


def market_split(num_rows=5, num_columns=40, slack=True):
    """Equal halves of random numbers (Cornuejols and Dawande): small, but too hard for branch and bound."""
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 100, (num_rows, num_columns))
    half = rng.permuted(np.arange(num_columns) % 2)
    model = ProgramBuilder()
    pick = model.variables("pick", num_columns, upper=1, integer=True)
    rows = model.rows("split", num_rows, equals=weights @ half).add(pick[None], times=weights, sum_axis=1)
    if slack:
        over, under = (model.variables(name, num_rows, cost=1) for name in ("over", "under"))
        rows.add(over, times=-1).add(under)
    return model.build(), pick, half


@pytest.mark.parametrize("method", ["choose", "simplex", "ipm"])
@pytest.mark.parametrize("maximize", [True, False])
def test_a_small_linear_program_with_its_duals(maximize, method):
    program, x, rows = two_products(maximize)
    sign = 1 if maximize else -1
    solution = solve(program, SolverOptions(method=method))
    assert solution.status is Status.OPTIMAL
    assert solution.objective == pytest.approx(sign * 21)
    assert solution.bound == pytest.approx(sign * 21)
    assert solution.gap == pytest.approx(0)
    assert solution.value(x) == pytest.approx([3, 1])
    assert solution.dual(program.rows_of(rows)) == pytest.approx([sign * 2, 0])
    assert solution.reduced_costs == pytest.approx([sign, 0])


def test_duals_are_the_change_of_the_objective_per_unit_of_a_bound():
    program, _, _ = two_products()
    more = replace(program, row_upper=program.row_upper + np.array([0.25, 0]))
    first, second = solve(program), solve(more)
    assert second.objective - first.objective == pytest.approx(0.25 * first.duals[0])
    less = replace(program, upper=program.upper - np.array([0.25, 0]))
    assert solve(less).objective - first.objective == pytest.approx(-0.25 * first.reduced_costs[0])


def test_duals_of_lower_bounds_and_equations():
    model = ProgramBuilder()
    x = model.variables("x", 2, cost=[2, 3])
    demand = model.rows("demand", lower=4).add(x, sum_axis=0)
    fixed = model.rows("fixed", equals=1).add(x[1])
    nothing = model.rows("nothing", 2, upper=1)
    program = model.build()
    solution = solve(program)
    assert solution.objective == pytest.approx(9)
    assert solution.dual(program.rows_of(demand)) == pytest.approx(2)
    assert solution.dual(program.rows_of(fixed)) == pytest.approx(1)
    assert solution.dual(program.rows_of(nothing)).tolist() == [0, 0]


def test_a_knapsack():
    program, take = knapsack()
    solution = solve(program)
    assert solution.status is Status.OPTIMAL
    assert solution.objective == 90
    assert solution.bound == pytest.approx(90)
    assert solution.value(take).tolist() == [0, 1, 0, 1]
    assert solution.duals is None
    with pytest.raises(SolverError, match="no duals"):
        solution.dual([0])


@pytest.mark.parametrize("integer", [False, True])
def test_infeasible(integer):
    model = ProgramBuilder()
    x = model.variables("x", 2, upper=1, integer=integer)
    model.rows("too much", lower=3).add(x, sum_axis=0)
    solution = solve(model.build())
    assert solution.status is Status.INFEASIBLE
    assert not solution.has_point
    assert solution.gap == math.inf
    with pytest.raises(SolverError, match="no point was found: the solve ended with status infeasible"):
        solution.value(x)


@pytest.mark.parametrize("integer", [False, True])
def test_a_violated_row_without_variables_is_infeasible(integer):
    model = ProgramBuilder()
    x = model.variables("x", 2, upper=1, integer=integer, where=[True, False])
    model.rows("arrives", 2, lower=[0, 1]).add(x)
    assert solve(model.build()).status is Status.INFEASIBLE


@pytest.mark.parametrize("integer", [False, True])
def test_a_lower_bound_above_the_upper_bound_is_infeasible(integer):
    model = ProgramBuilder()
    model.variables("x", 2, lower=[0, 3], upper=[1, 2], integer=integer)
    assert solve(model.build()).status is Status.INFEASIBLE


@pytest.mark.parametrize("integer", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_unbounded(integer, half):
    model = ProgramBuilder(maximize=True)
    x = model.variables("x", 2, cost=[1, 0], integer=integer)
    model.rows("close", equals=1 if half else 0).add(x, times=[2, -2], sum_axis=0)
    solution = solve(model.build())
    assert solution.status is (Status.INFEASIBLE if half and integer else Status.UNBOUNDED)
    assert not solution.has_point


def test_without_variables():
    assert solve(ProgramBuilder(offset=4).build()).objective == 4
    model = ProgramBuilder()
    model.rows("one", equals=1)
    assert solve(model.build()).status is Status.INFEASIBLE


@pytest.mark.parametrize("integer", [False, True])
def test_without_rows(integer):
    model = ProgramBuilder(offset=0.5)
    x = model.variables("x", 3, lower=-1, upper=2, cost=[1, -1, 0], integer=integer, where=[True, True, False])
    solution = solve(model.build())
    assert solution.objective == pytest.approx(-2.5)
    assert solution.bound == pytest.approx(-2.5)
    assert solution.value(x).tolist() == [-1, 2, 0]
    assert solution.value(x[::-1]).tolist() == [0, 2, -1]
    assert float(solution.value(x[1])) == 2


def test_coefficients_of_seconds_per_byte_are_not_dropped():
    model = ProgramBuilder(maximize=True)
    size_bytes = model.variables("bytes", cost=1)
    model.rows("one second", upper=1).add(size_bytes, times=1 / 300e9)
    assert solve(model.build()).objective == pytest.approx(300e9)


numbers = st.integers(-5, 5)


@st.composite
def programs(draw, integer):
    num_columns, num_rows = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    model = ProgramBuilder(maximize=draw(st.booleans()), offset=draw(numbers))
    lower = rng.integers(-2, 1, num_columns)
    whole = rng.random(num_columns) < integer
    cost = rng.integers(-5, 6, num_columns)
    x = model.variables("x", num_columns, lower, lower + rng.integers(0, 4, num_columns), integer=whole, cost=cost)
    middle = rng.integers(-6, 3, num_rows)
    row_lower = np.where(rng.random(num_rows) < 0.3, -np.inf, middle)
    row_upper = np.where(rng.random(num_rows) < 0.3, np.inf, middle + rng.integers(0, 6, num_rows))
    times = rng.integers(-3, 4, (num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.7)
    model.rows("r", num_rows, row_lower, row_upper).add(x[None], times=times, sum_axis=1)
    return model.build()


@settings(max_examples=60, deadline=None)
@given(programs(integer=0))
def test_linear_programs_agree_with_scipy(program):
    solution = solve(program)
    sign = -1 if program.maximize else 1
    matrix = program.matrix.toarray()
    up, low = np.isfinite(program.row_upper), np.isfinite(program.row_lower)
    peer = linprog(
        sign * program.cost,
        A_ub=np.vstack([matrix[up], -matrix[low]]),
        b_ub=np.concatenate([program.row_upper[up], -program.row_lower[low]]),
        bounds=np.column_stack([program.lower, program.upper]),
    )
    assert solution.has_point == peer.success
    if peer.success:
        assert solution.objective == pytest.approx(sign * peer.fun + program.offset, abs=1e-6)
    else:
        assert solution.status is Status.INFEASIBLE


@settings(max_examples=40, deadline=None)
@given(programs(integer=0.6))
def test_mixed_programs_agree_with_scipy(program):
    solution = solve(program)
    sign = -1 if program.maximize else 1
    rows = [LinearConstraint(program.matrix.toarray(), program.row_lower, program.row_upper)] * (program.num_rows > 0)
    bounds = Bounds(program.lower, program.upper)
    peer = milp(sign * program.cost, integrality=program.integer.astype(int), bounds=bounds, constraints=rows)
    assert solution.has_point == peer.success
    if peer.success:
        assert solution.objective == pytest.approx(sign * peer.fun + program.offset, abs=1e-5)
        assert np.array_equal(solution.values[program.integer], np.round(solution.values[program.integer]))


@settings(max_examples=40, deadline=None)
@given(programs(integer=1))
def test_integer_programs_agree_with_enumeration(program):
    solution = solve(program)
    ranges = [range(int(low), int(up) + 1) for low, up in zip(program.lower, program.upper, strict=True)]
    points = np.array(list(itertools.product(*ranges)))
    activity = points @ program.matrix.toarray().T
    fits = np.all((activity >= program.row_lower) & (activity <= program.row_upper), axis=1)
    assert solution.has_point == fits.any()
    if fits.any():
        found = points[fits] @ program.cost + program.offset
        assert solution.objective == pytest.approx(found.max() if program.maximize else found.min())


def test_integers_with_fractional_bounds():
    model = ProgramBuilder()
    x = model.variables("x", 3, lower=[0.01, 0, -np.inf], upper=[9.5, 2.7, 3.5], integer=True, cost=[1, -1, -1])
    model.rows("r", upper=100).add(x, times=[0.1, 0.2, 0.3], sum_axis=0)
    assert solve(model.build()).value(x).tolist() == [1, 2, 3]


def test_the_time_limit_is_respected_and_leaves_a_point():
    program, pick, _ = market_split()
    started = time.monotonic()
    solution = solve(program, SolverOptions(time_limit_s=0.5))
    assert time.monotonic() - started < 20
    assert solution.status is Status.FEASIBLE
    assert solution.gap > 0
    assert solution.bound <= solution.objective
    assert set(solution.value(pick)) <= {0, 1}


def test_a_time_limit_of_zero_gives_no_point():
    solution = solve(market_split()[0], SolverOptions(time_limit_s=0))
    assert solution.status is Status.TIME_LIMIT
    assert not solution.has_point
    assert solution.bound == -math.inf


def test_first_solution_stops_early():
    solution = solve(market_split()[0], SolverOptions(first_solution=True))
    assert solution.status is Status.FEASIBLE
    assert solution.seconds < 20


def test_a_start_point_replaces_the_search():
    program, pick, half = market_split(slack=False)
    assert solve(program, SolverOptions(time_limit_s=0.3)).status is Status.TIME_LIMIT
    solution = solve(program, SolverOptions(time_limit_s=60, start=program.point((pick, half))))
    assert solution.status is Status.OPTIMAL
    assert solution.seconds < 30  # the search alone takes much longer
    assert solution.value(pick).tolist() == half.tolist()


def test_continuous_values_of_a_start_may_be_arbitrary():
    program, pick, half = market_split()
    best = []
    options = SolverOptions(
        time_limit_s=1,
        start=program.point((pick, 1 - half)),
        on_progress=lambda *progress: best.append(progress[0]),
    )
    solution = solve(program, options)
    assert best[0] < math.inf
    assert solution.has_point


def test_an_infeasible_start_is_ignored():
    program, take = knapsack()
    assert solve(program, SolverOptions(start=program.point((take, 1)))).objective == 90


def test_a_start_of_another_size_is_an_error():
    with pytest.raises(InputError, match="start: expected 4 finite values"):
        solve(knapsack()[0], SolverOptions(start=np.zeros(3)))


def test_progress_is_reported():
    seen = []
    solution = solve(market_split()[0], SolverOptions(time_limit_s=0.5, on_progress=lambda *shown: seen.append(shown)))
    best, bound, seconds = (np.array(column) for column in zip(*seen, strict=True))
    assert np.all(np.diff(best) <= 0)
    assert best[-1] == pytest.approx(solution.objective)
    assert bound[-1] == pytest.approx(solution.bound)
    assert np.all(np.diff(seconds) >= 0)


def test_should_stop_returns_the_best_point_so_far():
    started = time.monotonic()
    solution = solve(market_split()[0], SolverOptions(should_stop=lambda: time.monotonic() > started + 0.3))
    assert solution.status is Status.INTERRUPTED
    assert solution.has_point
    assert solution.seconds < 20


def test_should_stop_ends_a_linear_program():
    rng = np.random.default_rng(0)
    model = ProgramBuilder(maximize=True)
    x = model.variables("x", 3000, upper=1, cost=rng.random(3000))
    times = rng.random((1000, 3000)) * (rng.random((1000, 3000)) < 0.05)
    model.rows("r", 1000, upper=1).add(x[None], times=times, sum_axis=1)
    for method in ("simplex", "ipm"):
        solution = solve(model.build(), SolverOptions(should_stop=lambda: True, method=method))
        assert solution.status is Status.INTERRUPTED
        assert solution.bound == math.inf


def test_the_memory_limit_is_respected():
    solution = solve(market_split()[0], SolverOptions(memory_limit_MB=1))
    assert solution.status is Status.MEMORY_LIMIT
    assert solution.seconds < 20


def test_exceptions_of_callbacks_are_raised():
    def fail(*_):
        raise ZeroDivisionError("mine")

    for options in (SolverOptions(on_progress=fail), SolverOptions(should_stop=fail)):
        with pytest.raises(ZeroDivisionError, match="mine"):
            solve(market_split()[0], options)


INTERRUPT_ME = """
import math, os, signal, threading, time
from flowccl.solver import SolverOptions, solve
from tests.solver.test_highs import market_split
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT by default
sent = []
def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
def seen(best, bound, seconds):  # interrupt once there is a point, regardless of the speed of the machine
    if math.isfinite(best) and not sent:
        sent.append(0.0)
        threading.Timer(0.2, interrupt).start()
solution = solve(market_split()[0], SolverOptions(on_progress=seen))
print(solution.status, solution.has_point, time.monotonic() - sent[-1] < 10)
"""


def test_ctrl_c_returns_the_best_point_so_far():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPT_ME], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["interrupted", "True", "True"], done.stderr
    assert done.returncode == 0


def test_threads_and_seeds_do_not_change_the_optimum():
    program, _ = knapsack()
    for threads, seed in itertools.product((1, 2), (0, 7)):
        assert solve(program, SolverOptions(threads=threads, seed=seed)).objective == 90


def test_integers_are_exact_with_large_coefficients():
    """Within tolerance, "open" = 5e-7 allows a flow of half a unit; an exact 0 does not."""
    model = ProgramBuilder()
    opened = model.variables("open", 3, upper=1, integer=True, cost=[1, 1.1, 1.2])
    flow = model.variables("flow", 3)
    model.rows("flow only if open", 3, upper=0).add(flow).add(opened, times=-1e6)
    model.rows("demand", lower=0.5).add(flow, sum_axis=0)
    model.rows("demand of the last two", lower=0.25).add(flow[1:], sum_axis=0)
    solution = solve(model.build())
    assert solution.value(opened).tolist() == [0, 1, 0]
    assert solution.objective == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"values": np.array([3.0, 2.0])}, "limits\\[0\\] is violated by 0.333 \\(and 1 more\\)"),
        ({"values": np.array([4.0, 0.0])}, "x\\[0\\] violates its bounds by"),
        ({"values": np.array([np.nan, 0.0])}, "x\\[0\\] is not a finite number"),
        ({"values": np.array([3.0])}, "values for 2 columns"),
        ({"values": np.array([0.0, 2.0]), "objective": 14.0}, "x\\[0\\] violates comp.*limits\\[0\\] violates comp"),
        ({"objective": 22.0}, "the objective is 21.0, not 22.0"),
        ({"bound": 20.0}, "better than the reported bound 20.0"),
        ({"duals": np.array([1.0, 0.0])}, "x\\[1\\] violates complementary slackness"),
        ({"values": None}, "optimal without a point"),
    ],
)
def test_an_invalid_solution_is_detected(monkeypatch, lie, message):
    program, _, _ = two_products()
    truth = solve(program)
    assert check_solution(program, truth) == []
    monkeypatch.setitem(SOLVERS, "highs", lambda program, options: replace(truth, **lie))
    with pytest.raises(SolverError, match=message):
        solve(program)


def test_a_fractional_value_of_an_integer_is_detected(monkeypatch):
    program, _ = knapsack()
    truth = solve(program)
    lie = replace(truth, values=np.array([0.6, 1, 0, 1]), objective=96.0, bound=96.0)
    monkeypatch.setitem(SOLVERS, "highs", lambda program, options: lie)
    with pytest.raises(SolverError, match=r"take\[0\] differs from an integer by 0.4"):
        solve(program)


def test_a_failing_solver_is_a_solver_error(monkeypatch):
    import highspy

    def fail(self):
        raise RuntimeError("no more")

    monkeypatch.setattr(highspy.Highs, "run", fail, raising=False)
    with pytest.raises(SolverError, match="HiGHS failed: no more"):
        solve(knapsack()[0])


def test_a_failed_solve_is_repeated_without_presolve(monkeypatch):
    tried, truth = [], highs.HighsRun.read

    def read(self, program):
        tried.append(self.highs.getOptionValue("presolve")[1])
        return truth(self, program) if len(tried) > 1 else Solution(status=Status.ERROR)

    monkeypatch.setattr(highs.HighsRun, "read", read)
    assert solve(knapsack()[0]).objective == 90
    assert tried == ["choose", "off"]


def test_a_program_that_highs_rejects_is_a_solver_error():
    model = ProgramBuilder()
    model.rows("r", upper=1).add(model.variables("x"), times=1e18)
    with pytest.raises(SolverError, match="HiGHS could not read"):
        solve(model.build())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit_s": -1}, "time_limit_s must be >= 0, got -1"),
        ({"gap": math.nan}, "gap must be >= 0, got nan"),
        ({"threads": 0}, "threads must be >= 1"),
        ({"method": "magic"}, "method must be choose, simplex or ipm"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        SolverOptions(**options)


def test_an_unknown_solver_is_an_error():
    with pytest.raises(InputError, match="unknown solver 'cplex'; use one of: highs, gurobi"):
        solve(knapsack()[0], solver="cplex")


def test_cutting_stock_by_column_generation():
    """Gilmore and Gomory: cut rolls of 100 into 97 x 45, 610 x 36, 395 x 31, 211 x 14; the LP optimum is 452.25."""
    widths, demand = np.array([45, 36, 31, 14]), np.array([97, 610, 395, 211])
    model = ProgramBuilder()
    rolls = model.variables("rolls", 4, cost=1)
    rows = model.rows("demand", 4, lower=demand).add(rolls, times=100 // widths)
    session = Session(model.build())
    cuts = np.array([cut for cut in itertools.product(range(3), range(3), range(4), range(8)) if cut @ widths <= 100])
    for _ in range(20):
        solution = session.solve()
        dual_prices = solution.dual(session.program.rows_of(rows))
        best = cuts[np.argmax(cuts @ dual_prices)]
        if best @ dual_prices <= 1 + 1e-9:
            break
        added = session.add_columns(1, best[:, None])
        assert added.tolist() == [session.program.num_columns - 1]
    assert solution.objective == pytest.approx(452.25)
    assert solve(session.program).objective == pytest.approx(452.25)


def test_a_session_adds_rows_changes_costs_and_warm_starts():
    rng = np.random.default_rng(0)
    model = ProgramBuilder(maximize=True)
    x = model.variables("x", 60, upper=1, cost=rng.random(60))
    model.rows("r", 40, upper=1).add(x[None], times=rng.random((40, 60)), sum_axis=1)
    session = Session(model.build())
    cold = session.solve()
    assert session.solve().iterations == 0
    rows = session.add_rows(np.ones((2, 60)), upper=[1.5, 1.2])
    assert rows.tolist() == [40, 41]
    session.change_cost([3, 5], [2.0, 0.0])
    warm = session.solve()
    assert warm.iterations < cold.iterations
    assert warm.objective == pytest.approx(solve(session.program).objective)


def test_a_session_may_begin_without_columns():
    model = ProgramBuilder()
    model.rows("one", equals=1)
    session = Session(model.build())
    assert session.solve().status is Status.INFEASIBLE
    session.add_columns([3, 2], np.array([[1, 1]]))
    assert session.solve().objective == pytest.approx(2)


def test_each_solve_of_a_session_has_the_full_time_limit():
    program, _, _ = two_products()
    session = Session(program, SolverOptions(time_limit_s=0.3))
    assert session.solve().status is Status.OPTIMAL
    time.sleep(0.4)
    session.change_cost(0, 1)
    assert session.solve().status is Status.OPTIMAL


def test_a_session_rejects_integer_variables():
    with pytest.raises(InputError, match="has integer variables"):
        Session(knapsack()[0])
