"""Linear and mixed-integer programs, and one function for all solvers. Independent of GPUs and topologies.

ProgramBuilder -> LinearProgram -> solve(program, options) -> Solution, checked against its program

program.py    LinearProgram: frozen arrays
builder.py    ProgramBuilder, VariableBlock, RowFamily: whole arrays, one call per family
solution.py   Status, SolverOptions, Solution, check_solution
highs.py      HiGHS
session.py    Session: a linear program that grows between solves and is solved from its last basis
gurobi.py     Gurobi, if it is installed
"""

from collections.abc import Callable

from flowccl.errors import InputError
from flowccl.solver import gurobi, highs
from flowccl.solver.builder import ProgramBuilder, RowFamily, VariableBlock
from flowccl.solver.program import LinearProgram
from flowccl.solver.session import Session
from flowccl.solver.solution import Solution, SolverError, SolverOptions, Status, check_solution, checked

__all__ = [
    "SOLVERS",
    "LinearProgram",
    "ProgramBuilder",
    "RowFamily",
    "Session",
    "Solution",
    "SolverError",
    "SolverOptions",
    "Status",
    "VariableBlock",
    "check_solution",
    "solve",
]

SOLVERS: dict[str, Callable[[LinearProgram, SolverOptions], Solution]] = {"highs": highs.solve, "gurobi": gurobi.solve}
"""Solvers by name. Their packages are imported on first use."""


def solve(program: LinearProgram, options: SolverOptions | None = None, solver: str = "highs") -> Solution:
    """Solve a program and check the solution against it; a SolverError names the worst row of an invalid solution."""
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}; use one of: {', '.join(SOLVERS)}")
    return checked(program, SOLVERS[solver](program, options or SolverOptions()))
