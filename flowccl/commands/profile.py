"""`flowccl profile`: measure a machine between real processes, and check the accuracy of the model."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parser import FAULTS, JSON, QUIET, Commands, add_command, natural
from flowccl.commands.parts import check_no_faults, check_writable, machine_with_faults, print_result, valid_schedule
from flowccl.commands.terminal import CountLine
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.profile.measurements import Measurements

_HELP = f"""
flowccl profile --on gloo|mpi|nccl|mscclpp --out FILE [options]

measure latency, bandwidth and limits of this machine's links

Send probes between real processes, fit the latency and bandwidth of every link, detect links that share
a bottleneck, and write a topology file for `flowccl synth`. The raw measurements are written beside
it, for example to machine.measurements.json.
With --check, compare predicted and measured times of a schedule.
With --on mscclpp, measure what the operations of MSCCL++ cost on the GPUs of this host, and write a
runtime profile for `flowccl synth --for FILE`.

options:
  --from:source FILE  fit these measurements instead of measuring again
  --check MACHINE SCHEDULE  compare predicted and measured times of a schedule
  --on gloo|mpi|nccl|mscclpp  transport of the messages
  --one-gpu  with --on mscclpp: both ranks on one GPU
  --ranks N  number of processes (default: 4; nccl: one per GPU)
  --out FILE  write the machine here (.json or .json.gz)
  --name NAME  name of the machine (default: the name of the --out file)
  --sizes SIZE+  message sizes of the probes (default: 1KB 32KB 1MB 4MB)
  --repeats N  repetitions of each probe of a link (default: 8)
  --pairs N  probe at most this many pairs of links together (default: 2000)
  --size SIZE+  buffer sizes for --check (default: 1MB 4MB 16MB)
  --iterations N [50]  timed calls for --check
  {JSON}
  {QUIET}

{FAULTS}

examples:
  flowccl profile --on mpi --ranks 4 --out machine.json
  flowccl synth machine.json allgather --size 1MB --out ag.json
  flowccl profile --check machine.json ag.json --on mpi --size 1MB 4MB 16MB
  flowccl profile --from machine.measurements.json --out machine.json   # fit again without measuring
  torchrun --nproc-per-node 8 -m flowccl profile --on nccl --out machine.json
  flowccl profile --on mscclpp --out runtime.json              # two GPUs; --one-gpu: local costs only
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _profile, ranks=natural, pairs=natural)


def _profile(options: argparse.Namespace) -> int:
    if options.check is not None and options.source is not None:
        raise InputError("give --from or --check, not both")
    if options.check is not None:
        return _check(options)
    check_no_faults(options, "only --check takes a machine; a measured machine has its faults already")
    if options.out is None:
        raise InputError("profile needs --out: flowccl profile --on mpi --out machine.json")
    check_writable(options.out)
    if options.on == "mscclpp" and options.source is None:
        return _measure_steps(options)
    if options.one_gpu:
        raise InputError("--one-gpu is for --on mscclpp")
    return _fit(options) if options.source is not None else _measure(options)


def _measure(options: argparse.Namespace) -> int:
    from flowccl.profile.probes import PlanOptions
    from flowccl.profile.processes import measure_machine
    from flowccl.units import parse_bytes

    if options.on is None:
        raise InputError("profile needs --on gloo, mpi or nccl: the transport of the messages")
    given = {name: getattr(options, name) for name in ("repeats", "pairs") if getattr(options, name) is not None}
    if options.sizes is not None:
        given["sizes"] = tuple(parse_bytes(size, "--sizes") for size in options.sizes)
    with CountLine(options.quiet or options.verbose, "measuring", "rounds", "Ctrl-C: keep what is measured") as line:
        measured = measure_machine(options.on, options.ranks, PlanOptions(**given), options.out, line.show)
    return 0 if measured is None else _write(options, measured)


def _measure_steps(options: argparse.Namespace) -> int:
    """Measure the operations of MSCCL++, and write a runtime profile."""
    from flowccl.files import write_json
    from flowccl.profile.step_costs import describe_costs, fit_costs, measure_steps, runtime_profile_of, to_json
    from flowccl.runtimes.profiles import profile_to_json

    for name in ("ranks", "sizes", "repeats", "pairs", "name"):
        if getattr(options, name) is not None:
            raise InputError(f"--{name} is not for --on mscclpp")
    samples = measure_steps(options.one_gpu, options.iterations)
    if samples is None:
        return 0
    costs = fit_costs(samples)
    made = to_json(profile_to_json(runtime_profile_of(costs, options.one_gpu)), costs)
    write_json(options.out, made, indent=1)
    print(json.dumps(made) if options.json else f"{describe_costs(costs, options.one_gpu)}\n\nwritten to {options.out}")
    return 0


def _fit(options: argparse.Namespace) -> int:
    from flowccl.profile.measurements import load_measurements

    if options.on is not None or options.ranks is not None:
        raise InputError("--from fits existing measurements: leave --on and --ranks out")
    return _write(options, load_measurements(options.source))


def _write(options: argparse.Namespace, measured: "Measurements") -> int:
    from flowccl.profile.machine import make_profile
    from flowccl.profile.measurements import measurements_path
    from flowccl.profile.show import describe_profile, profile_to_json
    from flowccl.topology.files import save_topology

    name = options.name or Path(options.out).name.removesuffix(".gz").removesuffix(".json")
    found = make_profile(measured, name)
    save_topology(found.topology, options.out)
    raw = options.source or measurements_path(options.out)
    text = f"{describe_profile(found, measured)}\n\nwritten to {options.out}; measurements in {raw}"
    print_result(options, profile_to_json(found, measured), text)
    return 0


def _check(options: argparse.Namespace) -> int:
    from flowccl.profile.check import check_profile, table
    from flowccl.units import parse_bytes

    machine, name = options.check
    schedule = valid_schedule(name)
    sizes = [parse_bytes(size) for size in options.size or ("1MB", "4MB", "16MB")]
    rows = check_profile(
        machine_with_faults(machine, options), schedule, sizes, options.on or "mpi", options.iterations
    )
    if rows is None:  # another process prints the table
        return 0
    print(json.dumps([row.to_json() for row in rows]) if options.json else table(rows))
    return 1 if any(row.wrong for row in rows) else 0
