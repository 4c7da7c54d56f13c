"""`flowccl advise`: which links are bottlenecks, and how much time more bandwidth saves."""

import argparse
import json

from flowccl.commands.parts import Commands, add_faults, machine_with_faults, natural
from flowccl.commands.terminal import print_text
from flowccl.errors import InputError


def add(commands: Commands) -> None:
    """Add the command and its options."""
    advise = commands.add_parser(
        "advise",
        help="find the bottleneck links, and the gain from more bandwidth",
        usage="flowccl advise MACHINE COLLECTIVE --size SIZE [options]",
        description=(
            "Solve the fluid relaxation of a collective (data flows without chunks or latency), list the links and\n"
            "limits that are bottlenecks, and print the time saved by 1 GB/s more on each. With --link, also the\n"
            "optimum for other bandwidths of that link and of all links equivalent to it by symmetry."
        ),
        epilog=(
            "examples:\n"
            "  flowccl advise dgx_a100:4 allgather --size 1GB\n"
            "  flowccl advise dgx_a100:4 alltoall --size 1GB --link 'gpu0 -> rail0' --bandwidths 25,50,100\n"
            "  flowccl advise dgx_a100:4 allgather --size 1GB --without 'gpu3 <-> rail3'"
        ),
    )
    advise.add_argument("machine", metavar="MACHINE", help="a name (see `flowccl machines`) or a topology file")
    advise.add_argument("collective", metavar="COLLECTIVE", help="allgather, alltoall, allreduce, broadcast, ...")
    advise.add_argument(
        "--size", metavar="SIZE", required=True, help="buffer size as nccl-tests counts it, e.g. 1GB (10^9) or 1GiB"
    )
    advise.add_argument(
        "--root", metavar="RANK", type=natural, default=0, help="root of broadcast, reduce ... (default: 0)"
    )
    advise.add_argument("--link", metavar="LINK", help="the link whose bandwidth is varied, e.g. 'gpu0 -> rail0'")
    advise.add_argument("--bandwidths", metavar="LIST", default="", help="its bandwidths in GB/s, e.g. 25,50,100")
    advise.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    add_faults(advise)
    advise.set_defaults(run=_advise)


def _advise(options: argparse.Namespace) -> int:
    from flowccl.analysis.advise import advise, describe
    from flowccl.units import parse_bytes, parse_GBps

    if bool(options.link) != bool(options.bandwidths):
        raise InputError("give --link and --bandwidths together: --link 'gpu0 -> rail0' --bandwidths 25,50,100")
    bandwidths = [parse_GBps(text, "--bandwidths") for text in options.bandwidths.split(",") if text]
    advice = advise(
        machine_with_faults(options.machine, options),
        options.collective,
        parse_bytes(options.size),
        root=options.root,
        link=options.link,
        bandwidths_GBps=bandwidths,
    )
    if options.json:
        print(json.dumps(advice.to_json()))
    else:
        print_text(describe(advice))
    return 0
