"""`flowccl run`: execute a schedule or a plan on real data."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parser import JSON, Commands, add_command, natural, positive, protocol
from flowccl.commands.parts import valid_schedule
from flowccl.errors import FileError, InputError

if TYPE_CHECKING:
    from flowccl.run.measure import Row, RunOptions

_GPU_ONLY = ("one_gpu", "warmup", "timeout", "instances", "proto", "root")
_WARMUP, _TIMEOUT_S = 5, 60
_ITERATIONS = {"mscclpp": 20}  # as in nccl-tests; processes on the CPU are slower
_HELP = f"""
flowccl run FILE [options]

execute a schedule on real data

Execute a schedule on real data, compare every result with the definition of the collective, and print
the columns of nccl-tests (size, count, type, time, algbw, busbw, wrong elements). With --on mscclpp,
the schedule, or a plan written by `flowccl export --to mscclpp`, is executed by MSCCL++ on CUDA GPUs.

exit code 0: all results are correct; 1: the schedule is invalid or a result is wrong.

options:
  FILE  a schedule file written by `flowccl synth`; mscclpp: or a plan
  --on numpy|gloo|mpi|mscclpp [numpy]  numpy: in this process; gloo (PyTorch), mpi, mscclpp (GPUs): one process per rank
  --ranks N  number of processes (default: one per GPU)
  --size SIZE+  buffer sizes as nccl-tests counts them (default: the schedule's size; plans: 1MiB)
  --sizes LOW:HIGH  many sizes: LOW:HIGH[:FACTOR], e.g. 64KiB:256MiB:4, each FACTOR times the one before (default: 2)
  --dtype TYPE+  element types, e.g. float16 (default: float32)
  --inplace  also run in place
  --iterations N  timed calls per row (default: 5; mscclpp: 20)
  {JSON}

mscclpp:
  --one-gpu  all ranks on one GPU, as processes that share it (MPS)
  --warmup N  calls before the timed ones (default: 5)
  --timeout SECONDS  end all ranks after this time without progress (default: 60)
  --instances N  for a schedule: parallel parts, as of `export` (default: 1)
  --proto NAME  for a schedule: protocol, as of `export` (default: auto)
  --root RANK  root of a broadcast plan (default: 0)

examples:
  flowccl run ag.json --on numpy --size 1MB 28 --dtype float32 float16 --inplace
  flowccl run ag.json --on gloo
  flowccl run ag.json --on mpi --size 16MB --iterations 20
  flowccl run ar.json --on mscclpp --sizes 64KiB:256MiB:4 --inplace      one GPU per rank
  flowccl run ar-plan.json --on mscclpp --one-gpu                        all ranks on one GPU
  torchrun --nproc-per-node 8 -m flowccl run ar.json --on mscclpp        in existing processes
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _run, warmup=natural, timeout=positive, proto=protocol)


def _run(options: argparse.Namespace) -> int:
    from flowccl.files import json_format
    from flowccl.run.measure import table

    if json_format(options.file) == "flowccl-reshard-plan":
        from flowccl.commands.run_reshard import run_reshard

        return run_reshard(options)
    rows, ranks = _run_mscclpp(options) if options.on == "mscclpp" else _run_schedule(options)
    if rows is None:  # another process prints the table
        return 0
    if options.json:
        print(json.dumps({"on": options.on, "ranks": ranks, "rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        print(table(rows, ranks, f"flowccl run --on {options.on}"))
    return 1 if any(timing.wrong for row in rows for timing in (row.out_of_place, row.in_place) if timing) else 0


def _run_schedule(options: argparse.Namespace) -> "tuple[list[Row] | None, int]":
    from flowccl.run.processes import run_schedule

    for name in _GPU_ONLY:
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} is for --on mscclpp")
    schedule = valid_schedule(options.file)
    chosen = _chosen(options, schedule.demand.size_bytes)
    return run_schedule(schedule, options.on, chosen, options.ranks), schedule.demand.num_gpus


def _run_mscclpp(options: argparse.Namespace) -> "tuple[list[Row] | None, int]":
    """Run a plan as it is, or the plans of a schedule, which are written to a temporary folder."""
    import tempfile

    from flowccl.export import ExportOptions
    from flowccl.run.mscclpp.plan_facts import is_plan, read_plan
    from flowccl.run.mscclpp.run_plans import GpuOptions, plans_of, root_of, run_plans

    if options.ranks is not None:
        raise InputError("--ranks is not for --on mscclpp: the plan decides the number of processes")
    warmup = _WARMUP if options.warmup is None else options.warmup
    gpu = GpuOptions(options.one_gpu, warmup, float(options.timeout or _TIMEOUT_S), options.root or 0)
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as folder:
        if is_plan(options.file):
            for name in ("inplace", "instances", "proto"):
                if getattr(options, name):
                    raise InputError(f"--{name} is for schedules: {options.file} is a plan, which fixes it")
            paths, size = [Path(options.file)], 1 << 20
            _warn_of_findings(options.file, gpu.root)
        else:
            schedule = valid_schedule(options.file)
            export = ExportOptions(instances=options.instances or 1, protocol=options.proto or "auto")
            paths, size = plans_of(schedule, export, options.inplace, Path(folder)), schedule.demand.size_bytes
            gpu = dataclasses.replace(gpu, root=root_of(schedule))
        return run_plans(paths, _chosen(options, size), gpu), read_plan(paths[0]).ranks


def _warn_of_findings(path: str, root: int) -> None:
    """Print a warning if the interpreter of exported files finds errors in a plan; elements may still be right."""
    from flowccl.export import check
    from flowccl.wording import counted

    try:
        findings = check(path, "mscclpp", root)[1]
    except FileError as error:
        print(f"flowccl: warning: the plan cannot be proved before it runs: {error}", file=sys.stderr)
        return
    if findings:
        found = f"the interpreter finds {counted(len(findings), 'error')} in {path}; the first: {findings[0]}"
        print(f"flowccl: warning: {found}", file=sys.stderr)


def _chosen(options: argparse.Namespace, size: int) -> "RunOptions":
    from flowccl.run.measure import RunOptions, parse_sweep
    from flowccl.units import parse_bytes

    if options.size and options.sizes:
        raise InputError("give --size or --sizes, not both")
    sizes = parse_sweep(options.sizes) if options.sizes else [parse_bytes(text) for text in options.size or []]
    iterations = options.iterations or _ITERATIONS.get(options.on, 5)
    return RunOptions(tuple(sizes or [size]), tuple(options.dtype or ["float32"]), options.inplace, iterations)
