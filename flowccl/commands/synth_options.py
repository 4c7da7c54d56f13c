"""The options of `flowccl synth`, and its help text."""

import argparse
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from flowccl.commands.parser import FAULTS, JSON, QUIET, SEED, Commands, add_command, natural, positive
from flowccl.commands.synth_reshard import RESHARD

_SYNTH = f"""
flowccl synth MACHINE COLLECTIVE --size SIZE [options]

synthesize a schedule

Synthesize a schedule for a collective on a machine, verify it, and print its completion time, a proved
lower bound and the gap between the two. The first run after an installation compiles the methods, which
takes about a minute. Ctrl-C stops the search and keeps the best schedule so far.

options:
  MACHINE?  a name (see `flowccl machines`) or a topology file (.json)
  COLLECTIVE?  allgather, alltoall, alltoallv, broadcast, scatter, gather, reduce, reduce_scatter, allreduce, dispatch,
      combine, reshard (see below), or a demand file (.json)
  --size SIZE  buffer size as nccl-tests counts it, e.g. 1MB (10^6 bytes) or 1MiB (2^20)
  --chunks N  chunks per block, or auto; a block is the data of one rank, or of one pair of ranks (default: auto)
  --method METHOD [auto]  see the methods below
  --root RANK [0]  root of broadcast, scatter, gather, reduce
  {JSON}
  --out FILE  write the schedule here (.json or .json.gz)
  --compact  write only the transfers of one source and the symmetry group (default on more than 2,000 GPUs)
  --for:runtime RUNTIME [ideal, in which messages cost nothing]  make the schedule for a runtime: mscclpp, msccl,
      executor, rccl, or a profile file (.json); the search then counts its message costs and keeps its limits
  --sms N  with --for: SMs of a GPU, where the machine names no GPU model
  --trade-off PICTURE?  also print how much earlier schedules with more messages per GPU end; with a file name (.png,
      .svg, .pdf), also draw it
  {QUIET}

search:
  --time-limit SECONDS [10]  time of the search in seconds
  --gap FRACTION [0.005]  stop once the gap to the lower bound is at most this, which --lean then keeps; 0.01 is 1 %
  --lean FRACTION [0.005, which is 0.5 %; 0: always the fastest]  of all schedules within this fraction of the best one,
      return that with the fewest transfers, and stop once doubling the work would gain less
  --min-chunk SIZE  do not divide blocks into chunks smaller than this (default: 4KB; with --for 512B); 1B: the fastest
      schedule, however small its chunks are
  {SEED}
  --steps N  stop after N steps of the search; makes runs repeatable
  --workers N [2]  threads of the search; with --steps, the result does not depend on it

{FAULTS}

process groups, late data, tenants:
  --group RANKS  ranks that take part, e.g. 0-7,16-23 (default: all)
  --relay RANKS  other ranks that may forward chunks: all, none or ranks (default: all)
  --reduce-GBps RATE  rate at which a GPU reduces arriving data, e.g. 200GB/s (default: reductions take no time)
  --late GPU=TIME ...  the data of this GPU is available only after this time, e.g. gpu3=20us; repeat for several GPUs
  --tenants FILE  a JSON list of demands that share the machine; no COLLECTIVE

alltoallv, dispatch, combine: mixture of experts, see docs/moe.md; --routing (below) names the routing file
  --matrix FILE  for alltoallv: bytes from each rank to each rank, JSON or CSV
  --placement FILE  rank or ranks of each expert, a JSON list (default: even, in rank order)
  --experts N  number of experts, without --placement (default: the highest one in --routing, plus 1)
  --token-bytes SIZE  bytes of a token that is sent to the experts
  --combine-bytes SIZE  bytes of a token that comes back (default: as --token-bytes)

{RESHARD}

milp, lp, astar: methods on a grid of epochs (time steps of equal length), after TE-CCL
  --from-teccl FILE  a TE-CCL input file in place of MACHINE and COLLECTIVE
  --buffer-limit SIZE  buffer of every node for forwarded data, e.g. 1MB
  --epoch:teccl_epoch LENGTH  length of an epoch: the time of a chunk on the fastest link (fast) or the slowest one
      (slow), a multiple of fast such as 2x, or a time such as 0.5us (default: fast)
  --epochs:teccl_epochs N  number of epochs, search or auto (default: auto)
  --no-copy:teccl_copy  nodes forward a chunk only once
  --no-buffers:teccl_buffers  GPUs do not store chunks for others, but forward them at once
  --hyper-edges:teccl_hyper_edges  replace switches by direct links of their neighbours
  --objective:teccl_objective epochs|paper  fewest epochs, or the objective of the TE-CCL paper (default: epochs)
  --latency-threshold:teccl_latency_threshold FRACTION  ignore latencies below this part of an epoch (default: 0)
  --early-stop:teccl_early_stop FRACTION  stop at this gap on the grid, e.g. 0.3 (default: 0)
  --no-start:teccl_warm_start  do not start from a plan of greedy and reroute
  --round-epochs:teccl_round_epochs N  for astar: epochs per round (default: auto)
  --solver:teccl_solver highs|gurobi  LP and MILP solver (default: highs)
  --threads:teccl_threads N  threads of the solver (default: the solver's)

taccl: three stages: routing, ordering, contiguity (which chunks share a message)
  --sketch:taccl_sketch FILE  sketch file of flowccl or TACCL (default: derived from the machine)
  --routing:taccl_routing HOW|FILE  milp, or fast: shortest paths one by one (default: milp); for dispatch and combine:
      the file with the experts of each token, npy, npz or parquet
  --contiguity:taccl_contiguity milp|fast  MILP, or merging messages one by one (default: milp)
  --routing-limit:taccl_routing_limit_s SECONDS  time limit of routing (default: half of --time-limit)
  --contiguity-limit:taccl_contiguity_limit_s SECONDS  time limit of contiguity (default: the remaining time)

sccl: schedules of the fewest steps and rounds; --chunks gives the chunks per block
  --sccl-steps:sccl_steps N  number of steps (default: all that are Pareto-optimal)
  --sccl-rounds:sccl_rounds N  rounds of all steps together (default: all that are Pareto-optimal)
  --sccl-extra-rounds:sccl_extra_rounds N  at most this many rounds more than steps (default: 4)
"""
_EXAMPLES = """examples:
  flowccl synth ndv2:2 allgather --size 1MB
  flowccl synth torus:8x8:bandwidth=50GB/s alltoall --size 16MB --time-limit 30 --out a2a.json.gz
  flowccl synth dgx_h100:2 allreduce --size 1MiB --for mscclpp --out plan.json
  flowccl synth dgx1 my-demand.json --json
  flowccl synth dgx_h100:4 allreduce --size 64MB --without 'gpu3 <-> rail3'
  flowccl synth ndv2:2 allgather --size 1MB --method taccl --sketch sk1-ndv2-n2.json
  flowccl synth dgx1 allgather --size 1MB --method sccl --chunks 6 --sccl-steps 3 --sccl-rounds 7
  flowccl synth torus:4x4 allreduce --size 1MB --group 0-7 --relay none --late gpu3=20us
  flowccl synth dgx_h100:4 alltoallv --matrix bytes.csv
  flowccl synth dgx_h100:4 dispatch --routing routing.npy --token-bytes 7168
  flowccl synth torus:4x4 --tenants tenants.json
  flowccl synth dgx_h100:3 reshard --from trainer.json --to engine.json --bucket 256MB --out plan.json
  flowccl synth torus:200x200 allgather --size 1GB --out compact.json.gz

{methods}

exit codes:
  0: success; 1: the schedule is invalid; 2: bad input; 3: nothing found in time"""


_PREFIXES = ("teccl_", "taccl_", "sccl_")


def _epilog() -> str:
    """Examples, the methods of the registry, and the exit codes; the registry is imported when help is asked for."""
    return _EXAMPLES.format(methods="\n".join(["methods:", *_methods()]))


def _methods() -> Iterator[str]:
    """The names of all methods: those of `auto`, the baselines that `auto` leaves out, and those of papers."""
    from flowccl.methods.registry import REGISTRY

    kinds: dict[str, list[str]] = {"auto": [], "baselines": [], "papers": []}
    for name, info in REGISTRY.items():
        kinds["auto" if info.in_auto else "baselines" if info.baseline else "papers"].append(name)
    heads = {
        "auto": "the default: a portfolio of ",
        "baselines": "textbook algorithms outside auto: ",
        "papers": "methods of published papers: ",
    }
    for kind, names in kinds.items():
        yield textwrap.fill(
            heads[kind] + ", ".join(names),
            110,
            initial_indent=f"  {kind:<11}",
            subsequent_indent=" " * 13,
            break_on_hyphens=False,
        )
    yield "  docs/methods has a page on each of them"


def add_synth(commands: Commands, run: Callable[[argparse.Namespace], int]) -> None:
    """Add the command and its options; the namespace has options of single methods only where they are given."""
    kinds = {"chunks": _chunks, "teccl_epochs": _epochs, "sccl_extra_rounds": natural}
    synth = add_command(commands, _SYNTH, run, " ".join(_PREFIXES), **kinds)
    synth.set_defaults(flag=synth.flag)
    synth.late_epilog = _epilog


def method_options(options: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """The options of a method that the user gave: of "teccl_", "taccl_" or "sccl_", without this prefix."""
    return {name.removeprefix(prefix): value for name, value in vars(options).items() if name.startswith(prefix)}


def _epochs(text: str) -> int | str:
    return text if text in ("auto", "search") else positive(text)


def _chunks(text: str) -> int | None:
    return None if text == "auto" else positive(text)
