"""Mathematics: linear and mixed-integer programs, and the solvers behind one function. Knows no GPU.

ProgramBuilder -> LinearProgram -> solve(program, options) -> Solution, checked against its program

program.py    LinearProgram: frozen arrays
builder.py    ProgramBuilder, Block, RowFamily: whole arrays in, one call per family
solution.py   Status, SolverOptions, Solution, check_solution
highs.py      HiGHS
session.py    Session: a linear program that grows, and is solved again from its last basis
gurobi.py     Gurobi, where it is installed
"""

from collections.abc import Callable

from flowccl.errors import InputError
from flowccl.solver import gurobi, highs
from flowccl.solver.builder import Block, ProgramBuilder, RowFamily
from flowccl.solver.program import LinearProgram
from flowccl.solver.session import Session
from flowccl.solver.solution import Solution, SolverError, SolverOptions, Status, check_solution, checked

__all__ = [
    "SOLVERS",
    "Block",
    "LinearProgram",
    "ProgramBuilder",
    "RowFamily",
    "Session",
    "Solution",
    "SolverError",
    "SolverOptions",
    "Status",
    "check_solution",
    "solve",
]

SOLVERS: dict[str, Callable[[LinearProgram, SolverOptions], Solution]] = {"highs": highs.solve, "gurobi": gurobi.solve}
"""Every solver by name. The packages behind them are imported when first used."""


def solve(program: LinearProgram, options: SolverOptions | None = None, solver: str = "highs") -> Solution:
    """Solve a program and check the answer against it; a SolverError names the worst row of an answer that is wrong."""
    if solver not in SOLVERS:
        raise InputError(f"unknown solver {solver!r}; use one of: {', '.join(SOLVERS)}")
    return checked(program, SOLVERS[solver](program, options or SolverOptions()))
