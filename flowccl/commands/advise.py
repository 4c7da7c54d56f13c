"""`flowccl advise`: what binds, and what more bandwidth would give."""

import argparse
import json

from flowccl.commands.parts import Commands, natural
from flowccl.errors import InputError


def add(commands: Commands) -> None:
    """The command and its options."""
    advise = commands.add_parser(
        "advise",
        help="say which links bind, and what more bandwidth would give",
        description="The fluid optimum of a collective, what binds it, and a sweep of one bandwidth.",
        epilog=(
            "examples:\n"
            "  flowccl advise dgx_a100:4 allgather --size 1GB\n"
            "  flowccl advise dgx_a100:4 alltoall --size 1GB --link 'gpu0 -> rail0' --bandwidths 25,50,100"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    advise.add_argument("machine", help="a machine by name, or a topology file")
    advise.add_argument("collective", help="allgather, alltoall, allreduce, broadcast, ...")
    advise.add_argument("--size", required=True, help="whole buffer, as nccl-tests counts it, for example 1GB")
    advise.add_argument("--root", type=natural, default=0, help="for broadcast, reduce, scatter, gather")
    advise.add_argument("--link", help="a link whose bandwidth to sweep, with all that are alike: 'gpu0 -> rail0'")
    advise.add_argument("--bandwidths", default="", help="the bandwidths to try, in GB/s: 25,50,100")
    advise.add_argument("--json", action="store_true", help="print one JSON object")
    advise.set_defaults(run=_advise)


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
