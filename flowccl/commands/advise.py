"""`flowccl advise`: which links are bottlenecks, and how much time more bandwidth saves."""

import argparse

from flowccl.commands.parser import FAULTS, JSON, MACHINE, Commands, add_command
from flowccl.commands.parts import machine_with_faults, print_result
from flowccl.errors import InputError

_HELP = f"""
flowccl advise MACHINE COLLECTIVE --size SIZE [options]

find the bottleneck links, and the gain from more bandwidth

Solve the fluid relaxation of a collective (data flows without chunks or latency), list the links and
limits that are bottlenecks, and print the time saved by 1 GB/s more on each. With --link, also the
optimum for other bandwidths of that link and of all links equivalent to it by symmetry.

options:
  {MACHINE}
  COLLECTIVE  allgather, alltoall, allreduce, broadcast, ...
  --size! SIZE  buffer size as nccl-tests counts it, e.g. 1GB (10^9) or 1GiB
  --root RANK [0]  root of broadcast, reduce ...
  --link LINK  the link whose bandwidth is varied, e.g. 'gpu0 -> rail0'
  --bandwidths LIST  its bandwidths in GB/s, e.g. 25,50,100
  {JSON}

{FAULTS}

examples:
  flowccl advise dgx_a100:4 allgather --size 1GB
  flowccl advise dgx_a100:4 alltoall --size 1GB --link 'gpu0 -> rail0' --bandwidths 25,50,100
  flowccl advise dgx_a100:4 allgather --size 1GB --without 'gpu3 <-> rail3'
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _advise)


def _advise(options: argparse.Namespace) -> int:
    from flowccl.analysis.advise import advise, describe
    from flowccl.units import parse_bytes, parse_GBps

    if bool(options.link) != bool(options.bandwidths):
        raise InputError("give --link and --bandwidths together: --link 'gpu0 -> rail0' --bandwidths 25,50,100")
    bandwidths = [parse_GBps(text, "--bandwidths") for text in (options.bandwidths or "").split(",") if text]
    advice = advise(
        machine_with_faults(options.machine, options),
        options.collective,
        parse_bytes(options.size),
        root=options.root,
        link=options.link,
        bandwidths_GBps=bandwidths,
    )
    print_result(options, advice.to_json(), describe(advice))
    return 0
