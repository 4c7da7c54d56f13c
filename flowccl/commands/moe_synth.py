"""`flowccl synth` for alltoallv, dispatch and combine: the planner's answer first."""

import argparse
import time
from typing import TYPE_CHECKING

from flowccl.commands.parts import check_writable, print_result
from flowccl.commands.terminal import ProgressLine, print_text
from flowccl.errors import InputError, TopologyError

if TYPE_CHECKING:
    from flowccl.result import Result
    from flowccl.topology.topology import Topology

MOE_COLLECTIVES = ("dispatch", "combine")


def is_moe(options: argparse.Namespace) -> bool:
    """Whether the command asks for a dispatch or a combine; refuses options that do not fit."""
    given = [f"--{name.replace('_', '-')}" for name in _ROUTING if getattr(options, name) is not None]
    options.routing = getattr(options, "taccl_routing", None)  # the method taccl has an option of the same name
    if options.collective not in MOE_COLLECTIVES:
        if given:
            raise InputError(f"{given[0]}: only for dispatch and combine")
        if options.routing not in (None, "milp", "fast"):
            raise InputError(f"argument --routing: invalid choice: {options.routing!r} (choose from 'milp', 'fast')")
        return False
    if options.routing is None or options.token_bytes is None:
        raise InputError(f"{options.collective} needs --routing FILE and --token-bytes BYTES")
    for name in ("size", "group", "relay", "matrix", "chunks"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name}: not for {options.collective}, whose data is given by --routing")
    if options.late or options.method != "auto":
        raise InputError(f"{options.collective}: --late and --method are not supported")
    return True


_ROUTING = ("placement", "experts", "token_bytes", "combine_bytes")


def synth_moe(options: argparse.Namespace, topology: "Topology") -> int:
    """Plan a dispatch or a combine."""
    from flowccl.moe.expert_parallel import CombinePlan
    from flowccl.moe.hot_experts import expert_changes
    from flowccl.moe.planner import Planner
    from flowccl.moe.routing import ExpertPlacement, check_token_bytes, dispatch_blocks, load_placement, load_routing
    from flowccl.moe.search import improved, result_of
    from flowccl.units import parse_bytes

    check_writable(options.out)
    begun = time.monotonic()
    routing = load_routing(options.routing, topology.num_gpus)
    most = max((int(one.max()) for one in routing if one.size), default=0) + 1
    if options.placement is not None:
        placement = load_placement(options.placement)
    else:
        placement = ExpertPlacement.even(options.experts or most, topology.num_gpus)
    combine = options.collective == "combine"
    option = "--combine-bytes" if combine and options.combine_bytes else "--token-bytes"
    size = parse_bytes(options.combine_bytes if option == "--combine-bytes" else options.token_bytes, option)
    check_token_bytes(size)
    there = Planner(topology, runtime=options.runtime, unit_bytes=size)
    planner = Planner(there.topology.reversed, unit_bytes=size) if combine else there
    blocks = dispatch_blocks(planner.layout, routing, placement, size)
    if not len(blocks):
        raise InputError(f"{options.routing}: every token stays on its GPU; there is nothing to plan")
    plan = improved(planner, blocks, options.collective, options.time_limit, options.gap)
    result = result_of(CombinePlan(there.topology, plan) if combine else plan, begun)
    _print(options, result)
    if not options.json and max(map(len, placement.gpus)) < topology.num_gpus:
        print_text("\n".join(map(str, expert_changes(planner, routing, placement, size))))
    return 0


def planned_first(options: argparse.Namespace, topology: "Topology", size: int | None) -> "Result | None":
    """The planner's answer to an alltoallv; None where another method, or what the planner lacks, is asked for."""
    plain = options.method == "auto" and options.chunks is None and options.group is None and not options.late
    if options.collective != "alltoallv" or options.matrix is None or not plain or options.runtime != "ideal":
        return None
    if size is not None or options.steps is not None or options.trade_off is not None or topology.has_buffer_limits:
        return None
    import numpy as np

    from flowccl.demand.collectives import alltoallv
    from flowccl.demand.matrix import load_matrix
    from flowccl.moe.blocks import Blocks, common_unit
    from flowccl.moe.lane_kernels import blocks_of
    from flowccl.moe.planner import Planner
    from flowccl.moe.search import improved, result_of

    begun = time.monotonic()
    rows = load_matrix(options.matrix)
    alltoallv(rows).check_fits(topology)
    matrix = np.zeros((topology.num_gpus, topology.num_gpus), dtype=np.int64)
    matrix[: len(rows), : len(rows)] = rows
    try:
        planner = Planner(topology, unit_bytes=common_unit(matrix - np.diag(np.diag(matrix))))
    except TopologyError:  # a machine without lanes between its hosts
        return None
    ptr, source, bytes_, to, _ = blocks_of(planner.checked(matrix), planner.layout.host_ptr, planner.layout.host_gpu)
    blocks = Blocks(ptr, source, bytes_, np.arange(len(to) + 1), to)
    with ProgressLine(options.quiet or options.verbose, options.time_limit) as progress:
        progress.phase("planning")
        plan = improved(planner, blocks, "alltoallv", min(1.0, options.time_limit / 4), options.gap)
    return result_of(plan, begun)


def _print(options: argparse.Namespace, result: "Result") -> None:
    from flowccl.schedule.files import save_schedule
    from flowccl.show import describe_result

    if options.out is not None:
        save_schedule(result.schedule, options.out)
    value = result.to_json() | {"collective": options.collective}
    print_result(options, value, describe_result(result, options.out))
