"""`flowccl synth`: synthesize a verified schedule for a machine and a collective."""

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from flowccl.commands.moe_synth import is_moe, planned_first, synth_moe
from flowccl.commands.parser import Commands
from flowccl.commands.parts import StopSignal, check_no_faults, check_writable, machine_with_faults, print_result
from flowccl.commands.synth_options import add_synth, method_options
from flowccl.commands.synth_reshard import NAME, check_no_reshard, synth_reshard
from flowccl.commands.terminal import ProgressLine, print_text
from flowccl.errors import InputError
from flowccl.search.budget import Budget

if TYPE_CHECKING:
    from flowccl.demand.demand import Demand
    from flowccl.result import Result
    from flowccl.synthesis.options import SearchOptions
    from flowccl.synthesis.trade_off import TradeOffPoint
    from flowccl.topology.topology import Topology

_LOADING = "loading compiled code (the first run compiles it)"
_LOWERED_S = 5e-4  # of a transfer, for each runtime of which `--json` says what it makes of a schedule


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_synth(commands, _synth)


def _synth(options: argparse.Namespace) -> int:
    from flowccl.units import parse_bytes

    given = method_options(options, "teccl_")
    if options.tenants is not None:
        return _synth_tenants(options)
    if options.from_teccl is not None:
        topology, demand, given = _from_teccl(options, given)
        return _synth_one(options, topology, demand, None, given)
    if options.collective == NAME and options.machine is not None:
        return synth_reshard(options)
    check_no_reshard(options)
    if options.machine is None or options.collective is None:
        raise InputError("synth needs MACHINE and COLLECTIVE: flowccl synth ndv2:2 allgather --size 1MB")
    topology = machine_with_faults(options.machine, options)
    if is_moe(options):
        return synth_moe(options, topology)
    size = None if options.size is None else parse_bytes(options.size)
    wanted = _demand_file(options.collective, size)
    if wanted is None and _is_compact(options, topology):
        return _synth_compact(options, topology, size)
    return _synth_one(options, topology, options.collective if wanted is None else wanted, size, given)


def _synth_one(
    options: argparse.Namespace, topology: "Topology", wanted: "str | Demand", size: int | None, given: dict[str, Any]
) -> int:
    """Synthesize one collective or demand; `given` are the options of its method."""
    budget = Budget(options.time_limit, options.steps, began=options.began_s)
    from flowccl.demand.demand import Demand
    from flowccl.demand.division import divided
    from flowccl.demand.requested import requested_demand
    from flowccl.plot.picture import check_picture
    from flowccl.synthesis import synthesize

    _check_late(options.late, topology)
    demand = requested_demand(
        topology,
        wanted,
        size,
        root=options.root,
        group=options.group,
        relay=options.relay,
        late=options.late,
        matrix=options.matrix,
    )
    if isinstance(demand, Demand) and not demand.tenants and options.from_teccl is None:
        demand = partial(divided, demand)  # the chunks of a file are blocks, which the search may divide
    given = _method_options(options, topology, given)
    topology = _with_buffer_limit(_with_reduce_rate(topology, options), options)
    check_writable(options.out)
    if options.trade_off:
        check_picture(options.trade_off)
    first = planned_first(options, topology, size)
    if first is not None and first.gap <= options.gap:
        return _report(options, first, size, budget)
    stop = StopSignal()
    limit_s = options.time_limit if first is None else max(options.time_limit - first.synthesis_s, 0.001)
    with ProgressLine(options.quiet or options.verbose, limit_s) as progress:
        progress.phase(_LOADING)
        result = synthesize(
            topology,
            demand,
            size,
            _search_options(options, limit_s, given),
            on_progress=progress.show,
            on_phase=progress.phase,
            should_stop=stop.asked,
            began_s=options.began_s,
        )
    if first is not None and first.schedule.finish_ps <= result.schedule.finish_ps:
        result = replace(first, bound=max(first.bound, result.bound, key=lambda bound: bound.ps))
    return _report(options, result, size, budget)


def _report(options: argparse.Namespace, result: "Result", size: int | None, budget: Budget) -> int:
    """Write and print a result."""
    from flowccl.schedule.files import save_schedule
    from flowccl.show import describe_methods, describe_result, describe_trade_off

    if options.out is not None:
        save_schedule(result.schedule, options.out)
    planned = result.schedule.demand.size_bytes
    if size is not None and planned != size and not options.quiet:
        note = f"no plan of {options.runtime} serves {size:,} B, since every chunk must be a multiple of 16 B"
        print(f"flowccl: note: {note}; planned for {planned:,} B", file=sys.stderr)
    front = _trade_off(options, result)
    if options.json:
        more = {"runtimes": _runtimes(result, options.sms, budget)}
        print(json.dumps(result.to_json() | more | ({"trade_off": [one.to_json() for one in front]} if front else {})))
    else:
        print_text(describe_result(result, options.out))
        if options.verbose:
            print_text(describe_methods(result))
        if front:
            print_text(describe_trade_off(front, result.bound.us))
    return 0


def _trade_off(options: argparse.Namespace, result: "Result") -> "list[TradeOffPoint]":
    """The trade-off where it is asked for, also written as a picture."""
    if options.trade_off is None:
        return []
    from flowccl.plot.curves import Curve, plot_curves
    from flowccl.runtimes.machine import known_sms
    from flowccl.synthesis.trade_off import trade_off

    schedule = result.schedule
    front = trade_off(result, known_sms(schedule.topology, options.sms))
    if options.trade_off:
        curves = [Curve("schedule", [(point.messages_per_gpu, point.finish_us) for point in front])]
        if result.lowered is not None:
            points = [(point.messages_per_gpu, point.program_us or 0.0) for point in front]
            curves.append(Curve(f"program on {result.lowered.runtime}", points, "s--"))
        curves.append(Curve("lower bound", [(point.messages_per_gpu, result.bound.us) for point in front], "k:"))
        title = f"{schedule.demand.collective} on {schedule.topology.name}"
        labels = ("most messages that one GPU sends", "completion time [us]")
        ticks = {point.messages_per_gpu: str(point.messages_per_gpu) for point in front}
        plot_curves(title, curves, options.trade_off, labels, ticks, log_y=False)
    return front


def _runtimes(result: "Result", sms: int | None, budget: Budget) -> "dict[str, Any]":
    """The runtimes that can load the schedule as it is, each with its time and the scratch bytes of a GPU.

    Those for which lowering would end after the time limit are left out, and it says so.
    """
    from flowccl.lowered import loadable, lowering_s
    from flowccl.runtimes.machine import known_sms
    from flowccl.runtimes.profiles import PROFILES

    schedule, own = result.schedule, result.lowered
    late = dict[str, Any]()

    def skip(name: str) -> bool:
        if own is not None and own.runtime == name:
            return True
        as_made = schedule.execution is not None and schedule.execution.profile.name == name
        seconds = lowering_s(schedule) if as_made else _LOWERED_S * len(schedule)
        if seconds > budget.after_s:
            late[name] = {"left_out": f"lowering takes about {seconds:.1f} s"}
        return name in late

    programs = loadable(schedule, known_sms(schedule.topology, sms), skip)
    if own is not None and own.runtime in PROFILES:
        programs[own.runtime] = own
    return late | {
        name: {"program_us": program.program_us, "scratch_bytes": program.scratch_bytes}
        for name, program in programs.items()
    }


def _search_options(options: argparse.Namespace, limit_s: float, given: dict[str, Any]) -> "SearchOptions":
    """The options of the search; `given` are those of its method."""
    from flowccl.synthesis.options import SearchOptions
    from flowccl.units import parse_bytes

    same = ("method", "chunks", "root", "gap", "lean", "runtime", "sms", "seed", "steps", "workers")
    chosen = {name: getattr(options, name) for name in same}
    least = None if options.min_chunk is None else parse_bytes(options.min_chunk, "--min-chunk")
    return SearchOptions(**chosen, time_limit_s=limit_s, min_chunk_bytes=least, options=given)


def _check_late(late: list[str], topology: "Topology") -> None:
    """Refuse GPUs that the machine does not have, and list the GPUs that it has."""
    from flowccl.wording import listed

    names = [node.name for node in topology.nodes[: topology.num_gpus]]
    for text in late:
        name, mark, _ = text.partition("=")
        if not mark:
            raise InputError(f"--late {text}: write GPU=TIME, for example {names[0]}=20us")
        if name not in names and not (name.isdecimal() and int(name) < len(names)):
            every = f"its GPUs are {listed(names)}, or ranks 0 to {len(names) - 1}"
            raise InputError(f"--late {text}: {topology.name} has no GPU {name!r}; {every}")


def _method_options(options: argparse.Namespace, topology: "Topology", given: dict[str, Any]) -> dict[str, Any]:
    """The options of the chosen method; options of another method are refused."""
    from flowccl.methods.registry import methods_where
    from flowccl.papers.taccl.sketch_files import load_sketch

    method, own = options.method, dict[str, Any]()
    for other in ("sccl", "taccl"):
        found = method_options(options, f"{other}_")
        if method == other:
            own = found
        elif found:
            raise InputError(f"{_flags(options, found, other)}: only for --method {other}")
    if method in ("sccl", "taccl"):  # they share --solver and --threads with the methods on epochs
        epochs = [name for name in given if name not in ("solver", "threads")]
        if epochs:
            raise InputError(
                f"{_flags(options, epochs[:1], 'teccl')}: only for --method milp, lp, astar; {method} has no epochs"
            )
        if "sketch" in own:
            own["sketch"] = load_sketch(own["sketch"], topology)
        return given | own
    on_epochs = methods_where(lambda info: info.epochs)
    if given and method not in on_epochs:
        raise InputError(f"{_flags(options, given, 'teccl')}: only for --method {', '.join(on_epochs)}")
    return given


def _flags(options: argparse.Namespace, names: Iterable[str], prefix: str) -> str:
    return ", ".join(options.flag(f"{prefix}_{name}") for name in names)


def _is_compact(options: argparse.Namespace, topology: "Topology") -> bool:
    """Whether to synthesize the compact form: if requested, or if the full schedule would be too large."""
    from flowccl.synthesis.compact import too_large

    plain = options.method in ("auto", "symmetric") and options.group is None and options.matrix is None
    return options.compact or (plain and not options.late and too_large(topology, options.collective))


def _synth_compact(options: argparse.Namespace, topology: "Topology", size: int | None) -> int:
    from flowccl.schedule.files import save_compact
    from flowccl.show import describe_compact
    from flowccl.synthesis.compact import synthesize_compact

    if size is None:
        raise InputError(f"{options.collective} needs a size, for example --size 1GB")
    if options.method not in ("auto", "symmetric"):
        raise InputError(f"--compact: only for --method symmetric; leave --method {options.method} out")
    check_writable(options.out)
    with ProgressLine(options.quiet or options.verbose) as progress:
        progress.phase("synthesizing the compact form")
        search = _search_options(options, options.time_limit, {})
        result = synthesize_compact(topology, options.collective, size, search)
    if options.out is not None:
        save_compact(result.compact, options.out)
    print_result(options, result.to_json(), describe_compact(result, options.out))
    return 0


def _from_teccl(options: argparse.Namespace, given: dict[str, Any]) -> "tuple[Topology, Demand, dict[str, Any]]":
    """The machine, demand and options in a TE-CCL input file; options of the command line take precedence."""
    from flowccl.papers.teccl.inputs import read_teccl_input

    if options.machine is not None:
        raise InputError(f"{options.from_teccl} contains the machine and the collective; leave {options.machine} out")
    check_no_faults(options, f"{options.from_teccl} contains the machine; remove the links there")
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
    from flowccl.synthesis.tenants import synthesize_tenants

    extra = [name for name in ("collective", "size", "group", "relay", "matrix") if getattr(options, name) is not None]
    if extra or options.late:
        flag = "COLLECTIVE" if options.collective is not None else f"--{(extra or ['late'])[0]}"
        raise InputError(f"--tenants: the file contains each tenant's collective; leave {flag} out")
    if options.machine is None:
        raise InputError("synth needs MACHINE: flowccl synth torus:4x4 --tenants tenants.json")
    topology = _with_reduce_rate(machine_with_faults(options.machine, options), options)
    load_tenants(options.tenants, topology.num_gpus)  # report errors in the file before the search
    check_writable(options.out)
    with ProgressLine(options.quiet or options.verbose) as progress:
        progress.phase("synthesizing the schedules of the tenants")
        search = _search_options(options, options.time_limit, {})
        tenants_of = partial(load_tenants, options.tenants, topology.num_gpus)
        result = synthesize_tenants(topology, tenants_of, search, should_stop=StopSignal().asked)
    if options.out is not None:
        save_schedule(result.result.schedule, options.out)
    print_result(options, result.to_json(), describe_tenants(result, options.out))
    return 0


def _with_reduce_rate(topology: "Topology", options: argparse.Namespace) -> "Topology":
    """The machine whose GPUs reduce at the rate of --reduce-GBps."""
    from flowccl.topology.variants import reducing_at
    from flowccl.units import parse_GBps

    if options.reduce_GBps is None:
        return topology
    return reducing_at(topology, parse_GBps(options.reduce_GBps, "--reduce-GBps"))


def _with_buffer_limit(topology: "Topology", options: argparse.Namespace) -> "Topology":
    """The machine whose nodes have buffers of --buffer-limit."""
    from flowccl.topology.variants import with_buffers
    from flowccl.units import parse_bytes

    if options.buffer_limit is None:
        return topology
    return with_buffers(topology, parse_bytes(options.buffer_limit, "--buffer-limit"))


def _demand_file(text: str, size: int | None) -> "Demand | None":
    """The custom demand if the collective is a file name, else None."""
    if not text.endswith((".json", ".json.gz")) and os.sep not in text:
        return None
    from flowccl.demand.files import load_demand

    demand = load_demand(text)
    if size is not None:
        raise InputError(f"{text} contains the size of each chunk; leave --size out")
    return demand
