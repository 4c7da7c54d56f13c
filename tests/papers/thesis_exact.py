"""The thesis's step models of allgather, exact for small machines: CM1 (3.8) and, with chunks, CM2 (3.9).

Time is divided into steps. In each step, a link carries what its bandwidth allows, and chunks arrive at the end of the
step. There is one binary variable per (chunk, destination, link, step); the number of steps is increased from 1.
"""

import math

import numpy as np

from flowccl.solver import ProgramBuilder, Status, solve
from flowccl.topology.topology import Topology


def least_steps(topology: Topology, chunks: int, step_s_per_GB: float, most: int) -> int:
    """The fewest steps in which the unit of every GPU, in chunks, reaches all; only without switches."""
    for steps in range(1, most + 1):
        if _possible(topology, chunks, step_s_per_GB, steps):
            return steps
    raise AssertionError(f"not possible in {most} steps")


def _possible(topology: Topology, chunks: int, step: float, steps: int) -> bool:
    gpus, links = topology.num_gpus, len(topology.links)
    model = ProgramBuilder()
    use = model.variables("usage", (gpus, chunks, links, steps), upper=1)
    for o in range(gpus):
        for d in range(gpus):
            if o == d:
                continue
            flow = model.variables("flow", (chunks, links, steps), upper=1, integer=True)
            rest = model.variables("rest", (chunks, gpus, steps), upper=1)  # stays at its node in a step
            model.rows("usage", flow.shape, lower=0).add(use[o]).add(flow, times=-1)
            for v in range(gpus):
                into, out = np.flatnonzero(topology.link_dst == v), np.flatnonzero(topology.link_src == v)
                model.rows("start", chunks, equals=float(v == o)).add(rest[:, v, 0]).add(flow[:, out, 0], sum_axis=1)
                model.rows("end", chunks, equals=float(v == d)).add(rest[:, v, -1]).add(flow[:, into, -1], sum_axis=1)
                if steps > 1:
                    balance = model.rows("balance", (chunks, steps - 1), equals=0)
                    balance.add(rest[:, v, :-1]).add(flow[:, into, :-1], sum_axis=1)
                    balance.add(rest[:, v, 1:], times=-1).add(flow[:, out, 1:], times=-1, sum_axis=1)
    fits = [math.floor(GBps * step * chunks * (1 + 1e-9)) for GBps in topology.link_GBps.tolist()]
    capacity = model.rows("link", (links, steps), upper=np.repeat(np.array(fits, dtype=float)[:, None], steps, axis=1))
    for o in range(gpus):
        for c in range(chunks):
            capacity.add(use[o, c])
    return solve(model.build()).status is Status.OPTIMAL
