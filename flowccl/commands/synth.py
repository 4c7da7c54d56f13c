"""`flowccl synth`: a machine and a collective in, a verified schedule out."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowccl.commands.parts import Commands, ProgressLine, StopSignal, check_writable
from flowccl.commands.synth_options import add_synth, epoch_options, taccl_options
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.demand.demand import Demand
    from flowccl.topology.topology import Topology


def add(commands: Commands) -> None:
    """The command and its options."""
    add_synth(commands).set_defaults(run=_synth)


def _synth(options: argparse.Namespace) -> int:
    from flowccl.topology.files import read_machine
    from flowccl.units import parse_bytes

    given = epoch_options(options)
    if options.tenants is not None:
        return _synth_tenants(options)
    if options.from_teccl is not None:
        topology, demand, given = _from_teccl(options, given)
        return _synth_one(options, topology, demand, None, given)
    if options.machine is None or options.collective is None:
        raise InputError("synth needs MACHINE and COLLECTIVE: flowccl synth ndv2:2 allgather --size 1MB")
    topology = read_machine(options.machine)
    size = None if options.size is None else parse_bytes(options.size)
    wanted = _demand_file(options.collective, size)
    if wanted is None and _is_compact(options, topology):
        return _synth_compact(options, topology, size)
    return _synth_one(options, topology, options.collective if wanted is None else wanted, size, given)


def _synth_one(
    options: argparse.Namespace, topology: "Topology", wanted: "str | Demand", size: int | None, given: dict[str, Any]
) -> int:
    """One collective or demand, with the options of its method that were `given`."""
    from flowccl.demand.asked import demand_asked
    from flowccl.schedule.files import save_schedule
    from flowccl.show import describe_result
    from flowccl.synthesis import synthesize

    who = {"root": options.root, "group": options.group, "relay": options.relay, "late": options.late}
    asked = demand_asked(topology, wanted, size, **who, matrix=options.matrix)
    given = _of_method(options, topology, given)
    topology = _limited(_adding(topology, options), options)
    if options.out is not None:
        check_writable(Path(options.out))
    stop = StopSignal()
    progress = ProgressLine(enabled=sys.stderr.isatty() and not options.quiet)
    try:
        result = synthesize(
            topology,
            asked,
            size,
            method=options.method,
            chunks=options.chunks,
            root=options.root,
            time_limit_s=options.time_limit,
            gap=options.gap,
            seed=options.seed,
            steps=options.steps,
            workers=options.workers,
            options=given,
            on_progress=progress.show,
            should_stop=stop.asked,
        )
    finally:
        progress.clear()
    if options.out is not None:
        save_schedule(result.schedule, options.out)
    print(json.dumps(result.to_json()) if options.json else describe_result(result, options.out))
    return 0


def _of_method(options: argparse.Namespace, topology: "Topology", given: dict[str, Any]) -> dict[str, Any]:
    """The options that the method takes; an error for those that are another's."""
    from flowccl.methods import ON_EPOCHS

    told = taccl_options(options)
    if options.method == "taccl":
        return _for_taccl(topology, given, told)
    if told:
        raise InputError(f"{', '.join(told)}: only method taccl takes it; choose it with --method taccl")
    if given and options.method not in ON_EPOCHS:
        raise InputError(f"options on epochs are those of {', '.join(ON_EPOCHS)}; choose one with --method")
    return given


def _for_taccl(topology: "Topology", given: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """The options of taccl; of those on epochs it knows who solves, and on how many threads."""
    from flowccl.topology.sketch_files import load_sketch

    other = [name for name in given if name not in ("solver", "threads")]
    if other:
        raise InputError(f"{other[0]}: taccl has no epochs; that is an option of milp, lp and astar")
    if "sketch" in told:
        told["sketch"] = load_sketch(told["sketch"], topology)
    return given | told


def _is_compact(options: argparse.Namespace, topology: "Topology") -> bool:
    """Whether the schedule is to be in compact form: asked for, or because it would be too large."""
    from flowccl.compact import too_large

    plain = options.method in ("auto", "symmetric") and options.group is None and options.matrix is None
    return options.compact or (plain and not options.late and too_large(topology, options.collective))


def _synth_compact(options: argparse.Namespace, topology: "Topology", size: int | None) -> int:
    from flowccl.compact import synthesize_compact
    from flowccl.schedule.compact import save_compact

    if size is None:
        raise InputError(f"{options.collective} needs a size, for example --size 1GB")
    if options.method not in ("auto", "symmetric"):
        raise InputError(f"--compact is the form of mirrored; leave --method {options.method} out")
    if options.out is not None:
        check_writable(Path(options.out))
    result = synthesize_compact(
        topology,
        options.collective,
        size,
        chunks=options.chunks,
        time_limit_s=options.time_limit,
        gap=options.gap,
        seed=options.seed,
    )
    if options.out is not None:
        save_compact(result.compact, options.out)
    print(json.dumps(result.to_json()) if options.json else result.describe(options.out))
    return 0


def _from_teccl(options: argparse.Namespace, given: dict[str, Any]) -> "tuple[Topology, Demand, dict[str, Any]]":
    """Machine, demand and options of a TE-CCL input; what the command line says comes first."""
    from flowccl.methods.teccl.inputs import read_teccl_input

    if options.machine is not None:
        raise InputError(f"{options.from_teccl} says machine and collective; leave {options.machine} out")
    found = read_teccl_input(options.from_teccl)
    for note in found.notes if not options.quiet else ():
        print(f"flowccl: note: {note}", file=sys.stderr)
    options.method = found.method if options.method == "auto" else options.method
    options.collective = found.demand.collective
    if found.time_limit_s is not None and found.time_limit_s > 0:
        options.time_limit = min(options.time_limit, found.time_limit_s)
    return found.topology, found.demand, found.options | given


def _synth_tenants(options: argparse.Namespace) -> int:
    from flowccl.demand.tenants import load_tenants
    from flowccl.schedule.files import save_schedule
    from flowccl.show import describe_tenants
    from flowccl.tenants import synthesize_tenants
    from flowccl.topology.files import read_machine

    extra = [name for name in ("collective", "size", "group", "relay", "matrix") if getattr(options, name) is not None]
    if extra or options.late:
        raise InputError(f"--tenants: the file says what each tenant wants; leave {(extra or ['late'])[0]} out")
    if options.machine is None:
        raise InputError("synth needs MACHINE: flowccl synth torus:4x4 --tenants tenants.json")
    topology = _adding(read_machine(options.machine), options)
    load_tenants(options.tenants, topology.num_gpus)  # errors now, not in the search
    if options.out is not None:
        check_writable(Path(options.out))
    result = synthesize_tenants(
        topology,
        lambda count: load_tenants(options.tenants, topology.num_gpus, count),
        method=options.method,
        chunks=options.chunks,
        time_limit_s=options.time_limit,
        gap=options.gap,
        seed=options.seed,
        steps=options.steps,
        should_stop=StopSignal().asked,
    )
    if options.out is not None:
        save_schedule(result.result.schedule, options.out)
    print(json.dumps(result.to_json()) if options.json else describe_tenants(result, options.out))
    return 0


def _adding(topology: "Topology", options: argparse.Namespace) -> "Topology":
    """The machine whose GPUs add up at the rate asked for."""
    from flowccl.topology.variants import reducing_at
    from flowccl.units import parse_GBps

    if options.reduce_GBps is None:
        return topology
    return reducing_at(topology, parse_GBps(options.reduce_GBps, "--reduce-GBps"))


def _limited(topology: "Topology", options: argparse.Namespace) -> "Topology":
    """The machine whose GPUs have room for as many bytes as asked for."""
    from flowccl.topology.buffers import with_buffers
    from flowccl.units import parse_bytes

    return topology if options.buffer_limit is None else with_buffers(topology, parse_bytes(options.buffer_limit))


def _demand_file(text: str, size: int | None) -> "Demand | None":
    """A custom demand where the collective is a file."""
    if not text.endswith((".json", ".json.gz")) and os.sep not in text:
        return None
    from flowccl.demand.files import load_demand

    if size is not None:
        raise InputError(f"{text} says how many bytes each chunk has; leave --size out")
    return load_demand(text)
