"""`flowccl import`: read a machine from another tool's file."""

import argparse
from pathlib import Path

from flowccl.commands.parser import Commands, add_command
from flowccl.commands.parts import check_writable
from flowccl.commands.terminal import print_text

_KINDS = ("nccl-topo", "nvidia-smi", "taccl", "teccl", "networkx")
_HELP = f"""
flowccl import FILE --from KIND --out FILE [options]

convert another tool's machine file to a topology file

Convert another tool's description of a machine to a topology file, and print every assumption about
values that the file does not contain.

options:
  FILE  the file of the other tool
  --from:kind! KIND  kind of the file: {", ".join(_KINDS)}
  --out! FILE  write the machine here (.json or .json.gz)
  --hosts N  number of copies of the host; needs --network
  --network NET  network of the hosts: rail:50GBps (one switch per NIC) or switch:50GBps
  --gpu MODEL  GPU model for nvidia-smi: p100, v100, a100, h100, h200, b200
  --sketch FILE  for taccl: the sketch file, with the hosts and their links
  --scale FACTOR  for taccl: factor by which times in its file are multiplied (default: guessed, and printed)
  --overheads  for taccl: alpha is an overhead per message that occupies the link (default: a latency)
  --pcie  keep PCIe links even if faster links connect all GPUs

examples:
  flowccl import topo.xml --from nccl-topo --out host.json
  flowccl import topo.xml --from nccl-topo --hosts 4 --network rail:50GBps --out cluster.json
  flowccl import topo.txt --from nvidia-smi --gpu h100 --out host.json
  flowccl import topo-ndv2-1MB.json --from taccl --sketch sk1-ndv2-n2.json --out ndv2x2.json
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _import, kind=_KINDS, scale=float)


def _import(options: argparse.Namespace) -> int:
    from flowccl.show import describe_topology
    from flowccl.topology.files import save_topology
    from flowccl.topology.importers import ImportOptions, import_machine

    check_writable(options.out)
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
