"""`flowccl catalog build | check | show | select | export | record`: the plans of a machine for all sizes."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.catalog_build import add_build
from flowccl.commands.parser import FAULTS, JSON, Commands, add_command
from flowccl.commands.parts import optional_machine, print_result
from flowccl.commands.terminal import print_text
from flowccl.errors import FileError, InputError

if TYPE_CHECKING:
    from flowccl.catalog.model import Catalog

_FOLDER = "FOLDER  the folder that `flowccl catalog build` wrote"
_CATALOG = """
A catalog is a folder of plans for one machine and one runtime: for each collective and range of sizes
the plan that is predicted to be the fastest, or the library's own algorithm where that is faster.
"""
_EXAMPLES = """
examples:
  flowccl catalog build dgx_h100:2 --for mscclpp --sizes 1KB:1GB --out plans
  flowccl catalog check plans
  flowccl catalog show plans --out plans.png
  flowccl catalog select plans --collective allreduce --size 3MiB
  flowccl catalog export plans --out for-mscclpp
  flowccl catalog record plans --measured allreduce-16-000000001000=14.2
"""
_CHECK = f"""
flowccl catalog check FOLDER [options]

everything that is wrong with a catalog

Check overlaps, holes, alignment, missing and changed files, and verify every schedule again.

exit code 0: nothing is wrong; 2: something is.

options:
  {_FOLDER}
  --machine MACHINE  the machine on which the catalog is to be used
  {JSON}

{FAULTS}

examples:
  flowccl catalog check plans
  flowccl catalog check plans --machine cluster.json
"""
_SHOW = f"""
flowccl catalog show FOLDER [options]

a table of the plans, and a picture of time by size

Print the ranges of sizes and their plans. With --out, also plot the predicted times over size.

options:
  {_FOLDER}
  --collective NAME  with --out: plot this collective (default: the first one)
  --out FILE  write the plot here (.png, .svg or .pdf)
  {JSON}

examples:
  flowccl catalog show plans
  flowccl catalog show plans --collective allgather --out allgather.png
"""
_SELECT = f"""
flowccl catalog select FOLDER --collective NAME --size SIZE [options]

which plan serves a call, and why

Print the plan that the rules choose for a call, its predicted time, and the reason.

options:
  {_FOLDER}
  --collective! NAME  allreduce, allgather, ...
  --size! SIZE  size as nccl-tests counts it, e.g. 3MiB
  --ranks N  GPUs of the call (default: all)
  --machine MACHINE  the machine on which the call runs (default: not checked)
  {JSON}

{FAULTS}

example:
  flowccl catalog select plans --collective allreduce --size 3MiB
"""
_EXPORT = f"""
flowccl catalog export FOLDER --out NEW_FOLDER [options]

the files that the runtime loads

Write what the runtime loads: for mscclpp the plans and a Python module that registers them with a
selector; for msccl, executor and rccl a folder of XML files (MSCCL_ALGO_DIR). For the sizes that the
library serves, nccl_tuner.csv configures the example tuner plugin of NCCL.

--to mscclpp-nccl writes the files that MSCCL++'s NCCL library (LD_PRELOAD) reads by their names, with
MSCCLPP_CACHE_DIR set to the new folder: allreduces on 16, 32 and 64 ranks. The files are proved.

options:
  {_FOLDER}
  --out! FOLDER  the new folder
  --to runtime|mscclpp-nccl [runtime]  the catalog's runtime, or MSCCL++'s NCCL library
  {JSON}

examples:
  flowccl catalog export plans --out for-mscclpp
  flowccl catalog export plans --to mscclpp-nccl --out cache
"""
_RECORD = f"""
flowccl catalog record FOLDER --measured PLAN=MICROSECONDS [--measured ...]

write measured times of plans into the catalog

Write the times that plans took on the machine, each at the size that the plan was made for, into
catalog.json as measured_us; `show` compares them with the predicted times. Rules stay as they are.

options:
  {_FOLDER}
  --measured! PLAN=US ...  a plan and its measured time in microseconds; repeat for several plans
  {JSON}

example:
  flowccl catalog record plans --measured allreduce-16-000000001000=14.2
"""


def add(commands: Commands) -> None:
    """Add the command and its parts."""
    catalog = commands.add_parser(
        "catalog",
        help="a folder of plans for many collectives and sizes",
        usage="flowccl catalog build|check|show|select|export|record ...",
        description=_CATALOG.strip(),
        epilog=_EXAMPLES.strip(),
    )
    parts = catalog.add_subparsers(title="parts", required=True, metavar="PART", dest="part", prog="flowccl catalog")
    add_build(parts)
    rest = ((_SHOW, _show), (_EXPORT, _export), (_RECORD, _record))
    for text, run in ((_CHECK, _check), (_SELECT, _select), *rest):
        add_command(parts, text, run)


def _check(options: argparse.Namespace) -> int:
    from flowccl.catalog.check import check_catalog
    from flowccl.catalog.mscclpp_nccl import check_named_files, is_named_folder
    from flowccl.wording import counted

    if is_named_folder(Path(options.folder)):
        findings = check_named_files(Path(options.folder))
        print_text("\n".join(findings) or "CORRECT: names, ranks and sizes as MSCCL++'s library reads them, all proved")
        return 2 if findings else 0
    machine = optional_machine(options)
    result = check_catalog(options.folder, machine)
    if options.json:
        print(json.dumps({"correct": not result.findings, "findings": list(result.findings)}))
    elif result.findings:
        print_text("\n".join([*result.findings, f"WRONG: {counted(len(result.findings), 'error')}"]))
    elif result.catalog is not None:
        plans, rules = counted(len(result.catalog.plans), "plan"), counted(len(result.catalog.rules), "rule")
        print_text(f"CORRECT: {plans}, {rules}: no overlaps, no holes, all files as built, every schedule verified")
    return 2 if result.findings else 0


def _show(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import catalog_to_json, load_catalog
    from flowccl.catalog.show import describe_catalog

    catalog = load_catalog(options.folder)
    print_result(options, catalog_to_json(catalog), describe_catalog(catalog))
    if options.out is not None:
        _plot(catalog, _collective(catalog, options.collective), options.out)
        if not options.json:
            print(f"plot written to {options.out}")
    return 0


def _collective(catalog: "Catalog", name: str | None) -> str:
    from flowccl.demand.collectives import collective_name

    if not catalog.collectives:
        raise FileError("the catalog has no rules")
    chosen = catalog.collectives[0] if name is None else collective_name(name)
    if chosen not in catalog.collectives:
        raise InputError(f"--collective {name}: the catalog has {', '.join(catalog.collectives)}")
    return chosen


def _plot(catalog: "Catalog", collective: str, path: str) -> None:
    """Draw a thick line for each plan, and the library and the lower bound dashed."""
    from flowccl.plot.curves import Curve, plot_curves
    from flowccl.units import format_bytes

    points = [point for point in catalog.times if point.collective == collective]
    rules = [rule for rule in catalog.rules if rule.collective == collective]
    curves = []
    for name, field, style in (("library", "library_us", "--"), ("lower bound", "lower_bound_us", "k--")):
        rows = [(p.size_bytes, getattr(p, field)) for p in points if getattr(p, field) is not None]
        curves += [Curve(name, rows, style)] if rows else []
    for plan in dict.fromkeys(rule.plan for rule in rules if rule.plan is not None):
        rows = [(p.size_bytes, p.program_us) for p in points if p.plan == plan and p.program_us is not None]
        curves += [Curve(plan, rows, "o-", 2.2)] if rows else []
    edges = sorted({edge for rule in rules for edge in (rule.bytes.low, rule.bytes.high)})
    title = f"{collective} on {catalog.machine.name}, {catalog.runtime}"
    ticks = {edge: format_bytes(edge) for edge in edges}
    plot_curves(title, curves, path, ("size", "predicted time [us]"), ticks, edges=edges)


def _select(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog, load_plan_file
    from flowccl.catalog.model import Call
    from flowccl.catalog.selection import Selector
    from flowccl.demand.collectives import collective_name
    from flowccl.units import format_us, parse_bytes

    catalog = load_catalog(options.folder)
    machine = optional_machine(options)
    fingerprint = None if machine is None else machine.fingerprint
    name, ranks = collective_name(options.collective), options.ranks or catalog.machine.ranks
    inplace = any(rule.inplace for rule in catalog.rules)
    call = Call(name, parse_bytes(options.size), ranks, inplace, fingerprint=fingerprint)
    choice = Selector(catalog).select(call)
    predicted_us = None
    if choice.plan is not None:
        load_plan_file(options.folder, choice.plan)
        predicted_us = _predicted_us(options.folder, catalog, choice.plan.name, call.size_bytes)
    plan = choice.plan
    value = {"plan": plan and plan.name, "file": plan and plan.file, "program_us": predicted_us}
    lines = [f"plan       {plan.name if plan else '(library)'}"]
    if plan is not None and predicted_us is not None:
        lines += [f"file       {Path(options.folder) / plan.file}", f"predicted  {format_us(predicted_us)}"]
    lines.append(f"reason     {choice.reason}")
    print_result(options, value | {"reason": choice.reason}, "\n".join(lines))
    return 0


def _export(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog
    from flowccl.catalog.runtime_files import write_runtime_files

    if options.to == "mscclpp-nccl":
        return _export_named(options)
    paths = write_runtime_files(Path(options.folder), load_catalog(options.folder), Path(options.out))
    print_result(options, [str(path) for path in paths], "\n".join(map(str, paths)))
    return 0


def _export_named(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog
    from flowccl.catalog.mscclpp_nccl import check_named_files, write_named_files

    done = write_named_files(Path(options.folder), load_catalog(options.folder), Path(options.out))
    findings = check_named_files(Path(options.out)) if done.paths else []
    value = {"files": [str(path) for path in done.paths], "notes": done.notes, "findings": findings}
    text = "\n".join([*map(str, done.paths), *(f"note: {note}" for note in done.notes), *findings])
    print_result(options, value, text)
    return 1 if findings else 0


def _record(options: argparse.Namespace) -> int:
    from flowccl.catalog.measured import record_measured
    from flowccl.wording import counted

    times = dict(_measured(text) for text in options.measured)
    catalog = record_measured(options.folder, times)
    done = [plan for plan in catalog.plans if plan.measured_us is not None]
    text = f"{counted(len(done), 'plan')} of {len(catalog.plans)} with a measured time"
    print_result(options, {plan.name: plan.measured_us for plan in done}, text)
    return 0


def _measured(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name, float(number)
    except ValueError:
        raise InputError(f"--measured {text!r}: write a plan and its time in microseconds, as in NAME=14.2") from None


def _predicted_us(folder: str, catalog: "Catalog", name: str, size_bytes: int) -> float:
    """The predicted time of a plan at a size."""
    from flowccl.catalog.case import PlanTimer, runtime_of
    from flowccl.catalog.files import load_plan_schedule
    from flowccl.units import ps_to_us

    schedule = load_plan_schedule(folder, catalog.plan(name), catalog.machine.ranks)
    inplace = any(rule.inplace for rule in catalog.rules)
    return ps_to_us(PlanTimer(schedule, runtime_of(catalog.runtime, catalog.costs), inplace).time_ps(size_bytes))
