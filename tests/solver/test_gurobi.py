"""The Gurobi interface, tested on a stand-in with the names of gurobipy that solves with scipy."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import linprog

from flowccl.errors import InputError
from flowccl.solver import ProgramBuilder, SolverError, SolverOptions, Status, solve

GRB = SimpleNamespace(
    OPTIMAL=2,
    INFEASIBLE=3,
    INF_OR_UNBD=4,
    UNBOUNDED=5,
    TIME_LIMIT=9,
    INTERRUPTED=11,
    MEM_LIMIT=17,
    INTEGER="I",
    CONTINUOUS="C",
    MAXIMIZE=-1,
    MINIMIZE=1,
    Callback=SimpleNamespace(MIP=3, MIP_OBJBST=3000, MIP_OBJBND=3001),
)


class GurobiError(Exception):
    pass


class Environment:
    def __init__(self, params):
        if params["Seed"] == 13:
            raise GurobiError("no licence")
        self.params = params

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Model(Environment):
    def __init__(self, env):
        self.env = env
        self.Params = SimpleNamespace(DualReductions=1)
        self.parts = []
        self.stopped = False

    def addMVar(self, count, lb, ub, obj, vtype):
        self.columns = SimpleNamespace(lower=lb, upper=ub, cost=obj, kind=vtype, count=count)
        return self.columns

    def addMConstr(self, matrix, columns, sense, bound):
        self.parts.append(SimpleNamespace(matrix=matrix.toarray(), sense=sense, bound=bound))
        return self.parts[-1]

    def update(self):
        pass

    def terminate(self):
        self.stopped = True

    def cbGet(self, what):
        return 1e100 if what == GRB.Callback.MIP_OBJBST else 7.0

    def optimize(self, callback):
        callback(self, GRB.Callback.MIP)
        sign = {"<": 1, ">": -1, "=": 1}
        unequal = [part for part in self.parts if part.sense != "="]
        equal = [part for part in self.parts if part.sense == "="]
        found = linprog(
            self.ModelSense * self.columns.cost,
            A_ub=np.vstack([sign[part.sense] * part.matrix for part in unequal]) if unequal else None,
            b_ub=np.concatenate([sign[part.sense] * part.bound for part in unequal]) if unequal else None,
            A_eq=np.vstack([part.matrix for part in equal]) if equal else None,
            b_eq=np.concatenate([part.bound for part in equal]) if equal else None,
            bounds=np.column_stack([self.columns.lower, self.columns.upper]),
            integrality=self.columns.kind == "I",
        )
        self.IterCount, self.NodeCount = 5.0, 1.0
        self.SolCount = int(found.success)
        if not found.success and self.Params.DualReductions:
            self.Status = GRB.INF_OR_UNBD
            return
        self.Status = {0: GRB.OPTIMAL, 2: GRB.INFEASIBLE, 3: GRB.UNBOUNDED}[found.status]
        if self.stopped:
            self.Status = GRB.INTERRUPTED
        self.ObjBound = 1e100
        if found.success:
            self.ObjVal = self.ObjBound = self.ModelSense * found.fun + self.ObjCon
            self.columns.X = found.x
            self._price(found, unequal, equal, sign)

    def _price(self, found, unequal, equal, sign):
        for parts, dual_prices in ((unequal, found.ineqlin.marginals), (equal, found.eqlin.marginals)):
            ends = np.cumsum([len(part.bound) for part in parts])
            for part, price in zip(parts, np.split(dual_prices, ends[:-1]) if parts else [], strict=True):
                part.Pi = self.ModelSense * sign[part.sense] * price


@pytest.fixture
def _gurobipy(monkeypatch):
    module = ModuleType("gurobipy")
    module.__dict__.update(Env=Environment, Model=Model, GRB=GRB, GurobiError=GurobiError)
    monkeypatch.setitem(sys.modules, "gurobipy", module)


def test_missing_gurobi_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(InputError, match="gurobi is not installed: pip install gurobipy"):
        solve(ProgramBuilder().build(), solver="gurobi")


@pytest.mark.usefixtures("_gurobipy")
@pytest.mark.parametrize("maximize", [True, False])
def test_a_linear_program_with_ranges_and_equations(maximize):
    model = ProgramBuilder(maximize=maximize, offset=1)
    x = model.variables("x", 3, upper=4, cost=[3, 2, 1])
    model.rows("range", 2, lower=[1, 2], upper=[5, 6]).add(x[:2]).add(x[2], times=2)
    model.rows("equal", equals=7).add(x, sum_axis=0)
    model.rows("free").add(x, sum_axis=0)
    program = model.build()
    answer, peer = solve(program, solver="gurobi"), solve(program, solver="highs")
    assert answer.status is Status.OPTIMAL
    assert answer.objective == pytest.approx(peer.objective)
    assert answer.values == pytest.approx(peer.values)
    assert answer.duals == pytest.approx(peer.duals)
    assert answer.reduced_costs == pytest.approx(peer.reduced_costs)
    assert (answer.iterations, answer.nodes) == (5, 1)


@pytest.mark.usefixtures("_gurobipy")
def test_integers_progress_and_stop():
    model = ProgramBuilder(maximize=True)
    take = model.variables("take", 4, upper=1, integer=True, cost=[10, 40, 30, 50])
    model.rows("weight", upper=10).add(take, times=[5, 4, 6, 3], sum_axis=0)
    seen = []
    options = SolverOptions(
        on_progress=lambda *shown: seen.append(shown[:2]),
        should_stop=lambda: True,
        time_limit_s=5,
        memory_limit_MB=1000,
        threads=1,
        first_solution=True,
        start=np.zeros(4),
    )
    answer = solve(model.build(), options, solver="gurobi")
    assert answer.status is Status.INTERRUPTED
    assert answer.value(take).tolist() == [0, 1, 0, 1]
    assert answer.bound == 90
    assert answer.duals is None
    assert seen == [(np.inf, 7.0)]


@pytest.mark.usefixtures("_gurobipy")
def test_infeasible_and_unbounded_are_distinguished():
    for equals, status in ((-1, Status.INFEASIBLE), (0, Status.UNBOUNDED)):
        model = ProgramBuilder(maximize=True)
        x = model.variables("x", 2, cost=1)
        model.rows("r", equals=equals).add(x, times=[1, -1 if status is Status.UNBOUNDED else 1], sum_axis=0)
        answer = solve(model.build(), solver="gurobi")
        assert answer.status is status
        assert not answer.has_point


@pytest.mark.usefixtures("_gurobipy")
def test_errors_are_raised():
    model = ProgramBuilder()
    model.variables("x", cost=1)
    with pytest.raises(SolverError, match="Gurobi: no licence"):
        solve(model.build(), SolverOptions(seed=13), solver="gurobi")

    def fail(*_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        solve(model.build(), SolverOptions(on_progress=fail), solver="gurobi")
