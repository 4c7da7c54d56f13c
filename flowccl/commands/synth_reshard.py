"""`flowccl synth MACHINE reshard`, and the same demand for `compare`: weights between two layouts."""

import argparse
from typing import TYPE_CHECKING, Any

from flowccl.commands.parts import StopSignal, check_writable, machine_with_faults, print_result
from flowccl.commands.terminal import ProgressLine
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.resharding.planning import ReshardResult

NAME = "reshard"
RESHARD = """reshard: weights between two layouts, see docs/reshard.md
  --from:source FILE  layout of the ranks that have the tensors (.json)
  --to:target FILE  layout of the ranks that want the tensors (.json)
  --helpers RANKS  other ranks that may relay: all, none or ranks, e.g. 24-31 (default: all)
  --bucket SIZE  memory of a rank for messages and relayed data, e.g. 256MB (default: no limit)
  --partial  allow tensors in --from that --to does not have; they stay"""
"""The options of a resharding."""

_OPTIONS_OF_COLLECTIVES = {  # options of other collectives, with the values that they have where they are not given
    "size": None,
    "chunks": None,
    "method": "auto",
    "root": 0,
    "compact": False,
    "trade_off": None,
    "min_chunk": None,
    "steps": None,
    "group": None,
    "relay": None,
    "reduce_GBps": None,
    "matrix": None,
    "tenants": None,
}


def check_no_reshard(options: argparse.Namespace) -> None:
    """Refuse the options of a resharding with another collective."""
    for name, flag in {"source": "--from", "target": "--to", "helpers": "--helpers", "bucket": "--bucket"}.items():
        if getattr(options, name) is not None:
            raise InputError(f"{flag}: only for reshard: flowccl synth MACHINE reshard --from A.json --to B.json")
    if options.partial:
        raise InputError("--partial: only for reshard: flowccl synth MACHINE reshard --from A.json --to B.json")


def synth_reshard(options: argparse.Namespace) -> int:
    """Synthesize a plan for a resharding, print it, and write it."""
    from flowccl.resharding.describe import describe_reshard
    from flowccl.resharding.plan_files import save_plan

    for name, default in _OPTIONS_OF_COLLECTIVES.items():
        if getattr(options, name) != default:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: not an option of reshard; the layouts say what moves")
    if options.late:
        raise InputError("--late: not an option of reshard; the layouts say what moves")
    check_writable(options.out)
    found = planned(options)
    if options.out is not None:
        save_plan(found.plan, options.out)
    print_result(options, found.to_json(), describe_reshard(found, options.out))
    return 0


def compare_reshard(options: argparse.Namespace) -> int:
    """Compare a plan with the baselines of a resharding."""
    from flowccl.resharding.baselines import baseline_us
    from flowccl.resharding.describe import describe_baselines

    if options.out is not None or options.methods is not None:
        raise InputError(f"{'--out' if options.out else '--methods'}: not an option of compare with reshard")
    found = planned(options)
    times = baseline_us(machine_with_faults(options.machine, options), found.plan.traffic)
    value = {"plan": found.to_json(), "baselines_us": times}
    print_result(options, value, describe_baselines(found, times))
    return 0


def planned(options: argparse.Namespace) -> "ReshardResult":
    """The plan for the options of a command."""
    from flowccl.demand.groups import parse_ranks
    from flowccl.resharding.layout_files import load_layout
    from flowccl.resharding.planning import reshard
    from flowccl.units import parse_bytes

    if options.source is None or options.target is None:
        raise InputError("reshard needs two layouts: flowccl synth MACHINE reshard --from A.json --to B.json")
    topology = machine_with_faults(options.machine, options)
    layouts = load_layout(options.source), load_layout(options.target)
    more: dict[str, Any] = {}
    if options.helpers not in (None, "all"):
        none = options.helpers == "none"
        more["helpers"] = () if none else parse_ranks(options.helpers, topology.num_gpus, "--helpers")
    if options.bucket is not None:
        more["bucket_bytes"] = parse_bytes(options.bucket, "--bucket")
    with ProgressLine(options.quiet or options.verbose, options.time_limit) as progress:
        return reshard(
            topology,
            *layouts,
            time_limit_s=options.time_limit,
            gap=getattr(options, "gap", 0.005),
            seed=options.seed,
            partial=options.partial,
            runtime=getattr(options, "runtime", "ideal"),
            sms=getattr(options, "sms", None),
            on_progress=progress.show,
            on_phase=progress.phase,
            should_stop=StopSignal().asked,
            **more,
        )
