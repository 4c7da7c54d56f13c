"""`flowccl import`: a machine from another tool's file."""

import argparse
from pathlib import Path

from flowccl.commands.parts import Commands, check_writable, positive


def add(commands: Commands) -> None:
    """The command and its options."""
    reader = commands.add_parser(
        "import",
        help="read a machine from another tool's file",
        description="Turn another tool's description of a machine into a topology file; says what was assumed.",
        epilog=(
            "examples:\n"
            "  flowccl import topo.xml --from nccl-topo --out host.json\n"
            "  flowccl import topo.xml --from nccl-topo --hosts 4 --network rail:50GBps --out cluster.json\n"
            "  flowccl import topo.txt --from nvidia-smi --gpu h100 --out host.json\n"
            "  flowccl import topo-ndv2-1MB.json --from taccl --sketch sk1-ndv2-n2.json --out ndv2x2.json"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reader.add_argument("file", metavar="FILE", help="what the other tool wrote")
    kinds = ("nccl-topo", "nvidia-smi", "taccl", "teccl", "networkx")
    reader.add_argument("--from", dest="kind", choices=kinds, required=True, help="the kind of file")
    reader.add_argument("--out", metavar="FILE", required=True, help="write the machine here (.json or .json.gz)")
    reader.add_argument("--hosts", metavar="N", type=positive, help="so many copies of the host")
    reader.add_argument("--network", metavar="NET", help="joined by rail:50GBps (one switch per NIC) or switch:50GBps")
    reader.add_argument("--gpu", metavar="MODEL", help="for nvidia-smi: p100, v100, a100, h100, h200 or b200")
    reader.add_argument("--sketch", metavar="FILE", help="for taccl: the sketch, with the hosts and their links")
    reader.add_argument("--scale", metavar="N", type=float, help="for taccl: what its microseconds were multiplied by")
    reader.add_argument(
        "--setups",
        action="store_true",
        help="for taccl: alphas hold the links, as in its cost model (default: latency)",
    )
    reader.add_argument("--pcie", action="store_true", help="keep PCIe links also where faster ones join all GPUs")
    reader.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from flowccl.show import describe_topology
    from flowccl.topology.files import save_topology
    from flowccl.topology.importers import ImportOptions, import_machine

    check_writable(Path(options.out))
    told = ImportOptions(
        gpu=options.gpu,
        sketch=None if options.sketch is None else Path(options.sketch),
        scale=options.scale,
        pcie=options.pcie,
        overheads=options.overheads,
    )
    imported = import_machine(options.file, options.kind, told, options.hosts, options.network)
    save_topology(imported.topology, options.out)
    print(describe_topology(imported.topology))
    print("\nassumed:")
    for note in imported.notes:
        print(f"  {note}")
    print(f"\nwrote {options.out}")
    return 0
