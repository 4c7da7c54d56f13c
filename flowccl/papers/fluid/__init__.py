"""Fluid optima: the least time per byte, by linear programs on the quotient of the machine by its symmetry.

arcs.py        the network: links, or links with duplicate vertices for switches that cannot copy
quotient.py    one source per class, one destination per class, classes of arcs
program.py     the linear programs of the thesis (3.10, 3.13, 3.16, 4.2)
offending.py   switches that mix what they forward, and must be duplicated
optimum.py     least time, then least cost, with the proof
method.py      method `fluid`: whole chunks along the optimal flow

`benchmarks/dantzig_wolfe.py` solves the same program by decomposition, for comparison.
"""

from flowccl.papers.fluid.optimum import FluidOptimum, fluid_optimum, gpu_traffic

__all__ = ["FluidOptimum", "fluid_optimum", "gpu_traffic"]
