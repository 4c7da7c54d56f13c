"""The command line: `flowccl synth | verify | show | plot | run | export | ...`. The only file that prints.

Exit codes: 0 good, 1 a schedule is invalid, 2 bad input, 3 nothing found in time.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowccl.arguments import epoch_options, parser
from flowccl.errors import FlowcclError, InputError, InvalidScheduleError, NothingFoundError

if TYPE_CHECKING:
    from flowccl.compare import Comparison
    from flowccl.demand.asked import Asked
    from flowccl.demand.demand import Demand
    from flowccl.result import Progress
    from flowccl.schedule.schedule import Schedule
    from flowccl.topology.topology import Topology

_EXIT = ((InvalidScheduleError, 1), (NothingFoundError, 3), (InputError, 2), (FlowcclError, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.ERROR, format="%(message)s")
    try:
        return _COMMANDS[options.command](options)
    except FlowcclError as error:
        print(f"flowccl: error: {error}", file=sys.stderr)
        return next(code for kind, code in _EXIT if isinstance(error, kind))
    except KeyboardInterrupt:
        print("flowccl: interrupted before any schedule was found", file=sys.stderr)
        return 3
    except BrokenPipeError:  # the reader of our output is gone, as in `flowccl machines | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        _StopSignal.restore()


# -- the commands -------------------------------------------------------------------------------------------------


def _synth(options: argparse.Namespace) -> int:
    from flowccl.demand.asked import demand_asked
    from flowccl.methods import ON_EPOCHS
    from flowccl.schedule.files import save_schedule
    from flowccl.show import describe_result
    from flowccl.synthesize import synthesize
    from flowccl.topology.buffers import with_buffers
    from flowccl.topology.files import read_machine
    from flowccl.units import parse_bytes

    if options.tenants is not None:
        return _synth_tenants(options)
    given, size = epoch_options(options), None
    asked: Asked
    demand: Demand | None
    if options.from_teccl is not None:
        topology, demand, given = _from_teccl(options, given)
    else:
        if options.machine is None or options.collective is None:
            raise InputError("synth needs MACHINE and COLLECTIVE: flowccl synth ndv2:2 allgather --size 1MB")
        topology = read_machine(options.machine)
        size = None if options.size is None else parse_bytes(options.size)
        demand = _demand_file(options.collective, size)
    asked = demand_asked(
        topology,
        options.collective if demand is None else demand,
        size,
        root=options.root,
        group=options.group,
        relay=options.relay,
        late=options.late,
        matrix=options.matrix,
    )
    if given and options.method not in ON_EPOCHS:
        raise InputError(f"options on epochs are those of {', '.join(ON_EPOCHS)}; choose one with --method")
    if options.buffer_limit is not None:
        topology = with_buffers(topology, parse_bytes(options.buffer_limit))
    if options.out is not None:
        _check_writable(Path(options.out))
    stop = _StopSignal()
    progress = _ProgressLine(enabled=sys.stderr.isatty() and not options.quiet)
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
    topology = read_machine(options.machine)
    load_tenants(options.tenants, topology.num_gpus)  # errors now, not in the search
    if options.out is not None:
        _check_writable(Path(options.out))
    result = synthesize_tenants(
        topology,
        lambda count: load_tenants(options.tenants, topology.num_gpus, count),
        method=options.method,
        chunks=options.chunks,
        time_limit_s=options.time_limit,
        gap=options.gap,
        seed=options.seed,
        steps=options.steps,
        should_stop=_StopSignal().asked,
    )
    if options.out is not None:
        save_schedule(result.result.schedule, options.out)
    print(json.dumps(result.to_json()) if options.json else describe_tenants(result, options.out))
    return 0


def _demand_file(text: str, size: int | None) -> "Demand | None":
    """A custom demand where the collective is a file."""
    if not text.endswith((".json", ".json.gz")) and os.sep not in text:
        return None
    from flowccl.demand.files import load_demand

    if size is not None:
        raise InputError(f"{text} says how many bytes each chunk has; leave --size out")
    return load_demand(text)


def _verify(options: argparse.Namespace) -> int:
    from flowccl.check.bounds import lower_bound
    from flowccl.check.verify import verify
    from flowccl.schedule.files import load_schedule
    from flowccl.topology.files import read_machine

    schedule = load_schedule(options.schedule, read_machine(options.machine) if options.machine else None)
    violations = verify(schedule)
    if options.json:
        found = [{"kind": v.kind, "message": v.message, "transfers": list(v.transfers)} for v in violations]
        print(json.dumps({"valid": not violations, "violations": found}))
        return 1 if violations else 0
    for violation in violations:
        print(violation)
    if violations:
        print(f"INVALID: {len(violations)} violation{'s' if len(violations) > 1 else ''} in {len(schedule)} transfers")
        return 1
    bound = lower_bound(schedule.topology, schedule.demand)
    times = f"finish {schedule.finish_us:g} us, lower bound {bound.us:g} us"
    print(f"VALID: {len(schedule)} transfers, {times}, gap {schedule.finish_ps / max(bound.ps, 1) - 1:.2%}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from flowccl.show import describe_schedule, describe_topology
    from flowccl.topology.files import read_machine

    schedule = _schedule_file(options.what)
    print(describe_topology(read_machine(options.what)) if schedule is None else describe_schedule(schedule))
    return 0


def _schedule_file(text: str) -> "Schedule | None":
    """The schedule in a file, or None where the text is something else."""
    from flowccl.files import json_format
    from flowccl.schedule.files import load_schedule

    return load_schedule(text) if json_format(text) == "flowccl-schedule" else None


def _machines(options: argparse.Namespace) -> int:
    from flowccl.topology.machines import MACHINES, machine

    if options.json:
        rows = [{"pattern": k.pattern, "example": k.example, "about": k.about} for k in MACHINES.values()]
        print(json.dumps(rows))
        return 0
    width = max(len(kind.pattern) for kind in MACHINES.values())
    for kind in MACHINES.values():
        print(f"{kind.pattern:<{width}}  {kind.about}")
        print(f"{'':<{width}}  e.g. {kind.example} ({machine(kind.example).num_gpus} gpus)")
    print(
        "\nOptions follow behind colons: ring:8:bandwidth=50GB/s:latency=0.5us. A JSON file describes other machines."
    )
    return 0


def _plot(options: argparse.Namespace) -> int:
    from flowccl.check.bounds import lower_bound
    from flowccl.plot.machine import plot_topology
    from flowccl.plot.timeline import plot_timeline
    from flowccl.topology.files import read_machine

    schedule = _schedule_file(options.what)
    if schedule is not None:
        out = options.out or str(Path(options.what).with_suffix("").with_suffix(".png"))
        plot_timeline(schedule, out, lower_bound_us=lower_bound(schedule.topology, schedule.demand).us)
    else:
        topology = read_machine(options.what)
        out = options.out or topology.name.replace(":", "-").replace("/", "-") + ".png"
        plot_topology(topology, out)
    print(out)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from flowccl.compare import compare, header, line, parse_sizes
    from flowccl.plot.comparison import plot_comparison
    from flowccl.plot.picture import check_suffix
    from flowccl.topology.files import read_machine

    topology, sizes, methods = read_machine(options.machine), parse_sizes(options.sizes), options.methods.split(",")
    if options.out is not None:
        check_suffix(options.out)
    shown: list[str] = []

    def show(row: "Comparison") -> None:
        if not shown:
            shown.append(header(list(row.finish_us)))
            print(shown[0])
        print(line(row), flush=True)

    rows = compare(
        topology,
        options.collective,
        sizes,
        methods,
        time_limit_s=options.time_limit,
        seed=options.seed,
        on_row=None if options.json else show,
        should_stop=_StopSignal().asked,
    )
    if options.json:
        print(json.dumps([row.to_json() for row in rows]))
    if options.out is not None and rows:
        columns = ["floor", *rows[0].finish_us]
        algbw = {column: [row.algbw_GBps(column) for row in rows] for column in columns}
        title = f"{options.collective} on {topology.name}, {topology.num_gpus} GPUs"
        plot_comparison(title, [row.size_bytes for row in rows], algbw, options.out)
        if not options.json:
            print(f"picture: {options.out}")
    return 0


def _advise(options: argparse.Namespace) -> int:
    from flowccl.advise import advise, describe
    from flowccl.topology.files import read_machine
    from flowccl.units import parse_bytes, parse_GBps

    if bool(options.link) != bool(options.bandwidths):
        raise InputError("--link and --bandwidths go together: --link 'gpu0 -> rail0' --bandwidths 25,50,100")
    bandwidths = [parse_GBps(text, "bandwidths") for text in options.bandwidths.split(",") if text]
    advice = advise(
        read_machine(options.machine),
        options.collective,
        parse_bytes(options.size),
        root=options.root,
        link=options.link,
        bandwidths_GBps=bandwidths,
    )
    print(json.dumps(advice.to_json()) if options.json else describe(advice))
    return 0


def _run(options: argparse.Namespace) -> int:
    from flowccl.check.verify import verify
    from flowccl.run.measure import Options, table
    from flowccl.run.processes import run_schedule
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes

    schedule = load_schedule(options.schedule)
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{options.schedule} is not run, for it is invalid: {violations[0]}")
    sizes = tuple(parse_bytes(size) for size in options.size or [schedule.demand.size_bytes])
    chosen = Options(sizes, tuple(options.dtype), options.inplace, options.iterations)
    rows = run_schedule(schedule, options.on, chosen, options.ranks)
    if rows is None:  # another process of this run prints
        return 0
    print(table(rows, schedule.demand.num_gpus, f"flowccl run --on {options.on}"))
    return 1 if any(timed.wrong for row in rows for timed in (row.out_of_place, row.in_place) if timed) else 0


def _import(options: argparse.Namespace) -> int:
    from flowccl.show import describe_topology
    from flowccl.topology.files import save_topology
    from flowccl.topology.importers import ImportOptions, import_machine

    _check_writable(Path(options.out))
    told = ImportOptions(
        gpu=options.gpu,
        sketch=None if options.sketch is None else Path(options.sketch),
        scale=options.scale,
        pcie=options.pcie,
    )
    imported = import_machine(options.file, options.kind, told, options.hosts, options.network)
    save_topology(imported.topology, options.out)
    print(describe_topology(imported.topology))
    print("\nassumed:")
    for note in imported.notes:
        print(f"  {note}")
    print(f"\nwrote {options.out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from flowccl.check.verify import verify
    from flowccl.export import Options, export, export_directory
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes

    low, high = (0 if text == "0" else parse_bytes(text) for text in (options.min_bytes, options.max_bytes))
    chosen = Options(options.inplace, options.instances, options.proto, low, high)
    schedules = [load_schedule(name) for name in options.schedule]
    for name, schedule in zip(options.schedule, schedules, strict=True):
        violations = verify(schedule)
        if violations:
            raise InvalidScheduleError(f"{name} is not exported, for it is invalid: {violations[0]}")
    if len(schedules) > 1 or Path(options.out).is_dir():
        paths = export_directory(schedules, options.to, options.out, chosen)
    else:
        paths = export(schedules[0], options.to, options.out, chosen)
    for path in paths:
        print(path)
    return 0


def _check_export(options: argparse.Namespace) -> int:
    from flowccl.export import check
    from flowccl.export.estimate import estimate_ps
    from flowccl.topology.files import read_machine
    from flowccl.units import parse_bytes, ps_to_us

    if (options.machine is None) != (options.size is None):
        raise InputError("the estimate needs both --machine and --size")
    program, findings = check(options.file, options.to, options.root)
    finish_us = None
    if options.machine is not None and not findings:
        finish_us = ps_to_us(estimate_ps(program, read_machine(options.machine), parse_bytes(options.size)))
    if options.json:
        found = [{"kind": finding.kind, "message": finding.message} for finding in findings]
        print(json.dumps({"proved": not findings, "findings": found, "finish_us": finish_us}))
        return 1 if findings else 0
    for finding in findings:
        print(finding)
    steps = f"{len(program.operations)} steps"
    if findings:
        print(f"WRONG: {len(findings)} finding{'s' if len(findings) > 1 else ''} in {steps}")
        return 1
    what = f"{program.collective} on {program.num_gpus} gpus, {program.chunks} chunks, {steps}"
    print(f"PROVED: {what}: results, order, no deadlock, limits of {options.to}")
    if finish_us is not None:
        print(f"finish {finish_us:g} us on {options.machine}")
    return 0


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "synth": _synth,
    "verify": _verify,
    "show": _show,
    "machines": _machines,
    "plot": _plot,
    "compare": _compare,
    "advise": _advise,
    "run": _run,
    "import": _import,
    "export": _export,
    "check-export": _check_export,
}


# -- what people see ----------------------------------------------------------------------------------------------


class _ProgressLine:
    """One line on a terminal that is written over and over."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def show(self, progress: "Progress") -> None:
        if not self.enabled or progress.finish_us is None:
            return
        gap = "" if progress.gap is None else f", gap {progress.gap:.2%}"
        text = f"{progress.elapsed_s:6.1f} s  best {progress.finish_us:g} us ({progress.method})"
        bound = "" if progress.lower_bound_us is None else f", floor {progress.lower_bound_us:g} us"
        sys.stderr.write(f"\r\033[K{text}{bound}{gap}  (Ctrl-C keeps the best)")
        sys.stderr.flush()

    def clear(self) -> None:
        if self.enabled:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class _StopSignal:
    """Ctrl-C asks the search to stop with its best; a second one ends the program."""

    before: Any = None  # who had the signal; given back at the end

    def __init__(self) -> None:
        self.stopping = False
        if threading.current_thread() is threading.main_thread():  # others get no signals
            _StopSignal.before = _StopSignal.before or signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._on_signal)

    @classmethod
    def restore(cls) -> None:
        if cls.before is not None:
            signal.signal(signal.SIGINT, cls.before)
            cls.before = None

    def _on_signal(self, *_: object) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def asked(self) -> bool:
        return self.stopping


def _check_writable(path: Path) -> None:
    """Say now, not after the work, that the file cannot be written."""
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; give a file name")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}")
    if not path.name.endswith((".json", ".json.gz")):
        raise InputError(f"--out {path}: the name must end in .json or .json.gz")
