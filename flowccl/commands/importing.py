"""`flowccl import`: read a machine from another tool's file."""

import argparse
from pathlib import Path

from flowccl.commands.parts import Commands, check_writable, positive
from flowccl.commands.terminal import print_text


def add(commands: Commands) -> None:
    """Add the command and its options."""
    reader = commands.add_parser(
        "import",
        help="convert another tool's machine file to a topology file",
        usage="flowccl import FILE --from KIND --out FILE [options]",
        description=(
            "Convert another tool's description of a machine to a topology file, and print every assumption about\n"
            "values that the file does not contain."
        ),
        epilog=(
            "examples:\n"
            "  flowccl import topo.xml --from nccl-topo --out host.json\n"
            "  flowccl import topo.xml --from nccl-topo --hosts 4 --network rail:50GBps --out cluster.json\n"
            "  flowccl import topo.txt --from nvidia-smi --gpu h100 --out host.json\n"
            "  flowccl import topo-ndv2-1MB.json --from taccl --sketch sk1-ndv2-n2.json --out ndv2x2.json"
        ),
    )
    reader.add_argument("file", metavar="FILE", help="the file of the other tool")
    kinds = ("nccl-topo", "nvidia-smi", "taccl", "teccl", "networkx")
    reader.add_argument(
        "--from",
        dest="kind",
        choices=kinds,
        required=True,
        help="kind of the file: " + ", ".join(kinds),
        metavar="KIND",
    )
    reader.add_argument("--out", metavar="FILE", required=True, help="write the machine here (.json or .json.gz)")
    reader.add_argument("--hosts", metavar="N", type=positive, help="number of copies of the host; needs --network")
    reader.add_argument(
        "--network", metavar="NET", help="network of the hosts: rail:50GBps (one switch per NIC) or switch:50GBps"
    )
    reader.add_argument("--gpu", metavar="MODEL", help="GPU model for nvidia-smi: p100, v100, a100, h100, h200, b200")
    reader.add_argument("--sketch", metavar="FILE", help="for taccl: the sketch file, with the hosts and their links")
    reader.add_argument(
        "--scale",
        metavar="FACTOR",
        type=float,
        help="for taccl: factor by which times in its file are multiplied (default: guessed, and printed)",
    )
    reader.add_argument(
        "--overheads",
        action="store_true",
        help="for taccl: alpha is an overhead per message that occupies the link (default: a latency)",
    )
    reader.add_argument("--pcie", action="store_true", help="keep PCIe links even if faster links connect all GPUs")
    reader.set_defaults(run=_import)


def _import(options: argparse.Namespace) -> int:
    from flowccl.show import describe_topology
    from flowccl.topology.files import save_topology
    from flowccl.topology.importers import ImportOptions, import_machine

    check_writable(Path(options.out))
    chosen = ImportOptions(
        gpu=options.gpu,
        sketch=None if options.sketch is None else Path(options.sketch),
        scale=options.scale,
        pcie=options.pcie,
        overheads=options.overheads,
    )
    imported = import_machine(options.file, options.kind, chosen, options.hosts, options.network)
    save_topology(imported.topology, options.out)
    print_text(describe_topology(imported.topology))
    print("\nassumptions:")
    for note in imported.notes or ("none",):
        print(f"  {note}")
    print(f"\nwritten to {options.out}")
    return 0
