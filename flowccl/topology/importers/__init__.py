"""Importers of machines from files of other tools.

Every importer is a function (path, ImportOptions) -> Imported. It reads a file with a size limit, assumes typical
values for data that the file does not contain, and lists these assumptions in `Imported.notes`.
"""

from pathlib import Path

from flowccl import by_name
from flowccl.errors import InputError
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic
from flowccl.topology.importers.network import join_hosts, parse_network

__all__ = ["IMPORTERS", "ImportOptions", "Imported", "Nic", "import_machine", "join_hosts", "parse_network"]

IMPORTERS = {  # the function of each format, imported when it is used
    "nccl-topo": "flowccl.topology.importers.nccl_topo:read_nccl_topo",
    "nvidia-smi": "flowccl.topology.importers.nvidia_smi:read_nvidia_smi",
    "taccl": "flowccl.papers.taccl.topology_file:read_taccl",
    "teccl": "flowccl.papers.teccl.inputs:read_teccl",
    "networkx": "flowccl.topology.importers.networkx_graph:read_networkx",
}


def import_machine(
    path: str | Path,
    kind: str,
    options: ImportOptions | None = None,
    hosts: int | None = None,
    network: str | None = None,
) -> Imported:
    """Return the machine in a file of another tool; with `hosts` and `network`, that many connected copies of it."""
    if kind not in IMPORTERS:
        raise InputError(f"unknown file format {kind!r}; known formats are {', '.join(IMPORTERS)}")
    if (hosts is None or hosts == 1) != (network is None):
        raise InputError("give --hosts and --network together, as in --hosts 2 --network rail:50GBps")
    if network is not None:
        parse_network(network)
    found: Imported = by_name.load(IMPORTERS[kind])(Path(path), options or ImportOptions())
    return found if hosts is None or network is None else join_hosts(found, hosts, network)
