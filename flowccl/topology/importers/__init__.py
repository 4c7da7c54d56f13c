"""Importers of machines from files of other tools.

Every importer is a function (path, ImportOptions) -> Imported. It reads a file with a size limit, assumes typical
values for data that the file does not contain, and lists these assumptions in `Imported.notes`.
"""

from collections.abc import Callable
from pathlib import Path

from flowccl.errors import InputError
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic
from flowccl.topology.importers.nccl_topo import read_nccl_topo
from flowccl.topology.importers.network import join_hosts, parse_network
from flowccl.topology.importers.networkx_graph import read_networkx
from flowccl.topology.importers.nvidia_smi import read_nvidia_smi
from flowccl.topology.importers.taccl import read_taccl
from flowccl.topology.importers.teccl import read_teccl

__all__ = ["IMPORTERS", "ImportOptions", "Imported", "Nic", "import_machine", "join_hosts", "parse_network"]

IMPORTERS: dict[str, Callable[[Path, ImportOptions], Imported]] = {
    "nccl-topo": read_nccl_topo,
    "nvidia-smi": read_nvidia_smi,
    "taccl": read_taccl,
    "teccl": read_teccl,
    "networkx": read_networkx,
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
    imported = IMPORTERS[kind](Path(path), options or ImportOptions())
    if hosts is None or network is None:
        return imported
    return join_hosts(imported, hosts, network)
