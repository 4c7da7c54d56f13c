"""Real machines, with the source of every number.

GB/s are per direction. "TE-CCL" is Liu et al., SIGCOMM 2024; "thesis" is Shapley, Cornell 2025; "A100 paper" is
Choquette et al., IEEE Micro 41(2), 2021; "vendor" is the vendor's public data sheet; for H200, B200, GB200 and MI300X,
its numbers as secondary sources repeat them, not read in the data sheet. Where no source gives a latency (A100, H100,
H200, B200, GB200, MI300X), a typical value is used, which is an option. GPU i of host h is gpu{h * gpus per host + i}.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any, Literal, get_args

from flowccl.errors import TopologyError
from flowccl.topology.builders import both, check_hosts, gpu_nodes, machine_name
from flowccl.topology.networks import LEAF_HOSTS, SPINE_LATENCY_US, Network, NetworkKind, connect_hosts
from flowccl.topology.topology import Link, Node, Topology

A100Links = Literal["nvlink", "no-nvlink", "all"]

NVSWITCH_LATENCY_US = 0.35  # that of DGX2, TE-CCL figure 13
NIC_LATENCY_US = 1.3  # that of NDv2, TE-CCL figure 14
PCIE_LATENCY_US = 0.7  # no source; that of an NVLink of NDv2

# NVLink units of 25 GB/s, row = from, column = to. TE-CCL section 6 and figure 14 (one host of NDv2), SCCL.
_DGX1_UNITS = (
    (0, 2, 1, 1, 2, 0, 0, 0),
    (2, 0, 1, 2, 0, 1, 0, 0),
    (1, 1, 0, 2, 0, 0, 2, 0),
    (1, 2, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 2, 1, 1),
    (0, 1, 0, 0, 2, 0, 1, 2),
    (0, 0, 2, 0, 1, 1, 0, 2),
    (0, 0, 0, 1, 1, 2, 2, 0),
)

# xGMI units of 50 GB/s, {(gpu, gpu): units}, each pair in both directions. TE-CCL figure 15. Formatted as a table:
# fmt: off
_MI250_UNITS = {
    (0, 1): 4, (0, 4): 2, (0, 8): 1, (1, 5): 1, (1, 9): 1, (1, 10): 1, (2, 3): 4, (2, 6): 1, (2, 9): 1, (2, 10): 1,
    (3, 7): 2, (3, 11): 1, (4, 5): 4, (4, 6): 1, (5, 6): 1, (5, 7): 1, (6, 7): 4, (8, 9): 4, (8, 12): 2, (9, 13): 1,
    (10, 11): 4, (10, 14): 1, (11, 15): 2, (12, 13): 4, (12, 14): 1, (13, 14): 1, (13, 15): 1, (14, 15): 4,
}
# fmt: on


def dgx1() -> Topology:
    """Return DGX1: 8 GPUs, NVLink hypercube mesh of 50 and 25 GB/s. Links are sorted by src, then dst."""
    return Topology("dgx1", tuple(gpu_nodes(8, 8, "V100")), tuple(_dgx1_links(0)))


def ndv2(hosts: int) -> Topology:
    """Return Azure NDv2: hosts with the DGX1 mesh. GPU 0 of a host sends to the other hosts, GPU 1 receives from them.

    Two hosts are linked directly; more hosts are linked through one plain switch. Order of the links: the mesh of each
    host; for each host the link out of its GPU 0; with a switch, for each host the link into its GPU 1.
    """
    check_hosts("ndv2", "hosts", hosts, 8)
    links = [k for host in range(hosts) for k in _dgx1_links(8 * host)]
    senders, receivers = range(0, 8 * hosts, 8), range(1, 8 * hosts, 8)
    # 12.5 GB/s and 1.3 us for each link, with and without the switch: TE-CCL figure 14.
    extra, network = _network("network", senders, receivers, 8 * hosts, 12.5, 1.3)
    return Topology(f"ndv2:{hosts}", (*gpu_nodes(8 * hosts, 8, "V100"), *extra), (*links, *network))


def dgx2(hosts: int) -> Topology:
    """Return DGX2: 16 GPUs on an NVSwitch that copies; odd GPUs send to even GPUs of other hosts: 1 -> 0, 3 -> 2, ...

    Two hosts are linked directly; more hosts are linked through one plain switch per such pair, network0 to network7.
    Order of the links: each GPU in rank order with its NVSwitch; for each pair the links between hosts, as for `ndv2`.
    """
    check_hosts("dgx2", "hosts", hosts, 16)
    gpus = 16 * hosts
    nodes = [*gpu_nodes(gpus, 16, "V100"), *_nvswitches(hosts, copies=True)]
    # 125 GB/s and 0.35 us: TE-CCL figure 13. The switch copies: TE-CCL section 3.1.
    links = [k for rank in range(gpus) for k in both(rank, gpus + rank // 16, 125.0, 0.35)]
    for pair in range(8):
        senders, receivers = range(2 * pair + 1, gpus, 16), range(2 * pair, gpus, 16)
        # 12.5 GB/s, 2.6 us: TE-CCL figure 13 (two hosts). More hosts: the same for each link, following figure 14.
        extra, network = _network(f"network{pair}", senders, receivers, len(nodes), 12.5, 2.6)
        nodes += extra
        links += network
    return Topology(f"dgx2:{hosts}", tuple(nodes), tuple(links))


def mi250(hosts: int) -> Topology:
    """Return AMD MI250: 16 GPUs (half a package each), xGMI of 200, 100 and 50 GB/s, leaf switches and one spine.

    Two GPUs share a leaf. Order of the links: for each host its xGMI links, sorted by GPU pair; each GPU in rank order
    with its leaf switch leaf{rank // 2}; each leaf with the spine. Switches are plain. One host has no switches.
    """
    check_hosts("mi250", "hosts", hosts, 16)
    links: list[Link] = []
    for first in range(0, 16 * hosts, 16):
        for (a, b), units in _MI250_UNITS.items():
            links += both(first + a, first + b, 50.0 * units, 0.6)  # 50 GB/s: figure 15; 0.6 us: table 2
    if hosts == 1:
        return Topology("mi250:1", tuple(gpu_nodes(16, 16, "MI250")), tuple(links))
    gpus, leaves = 16 * hosts, 8 * hosts
    switches = [Node(name=f"leaf{i}", kind="switch", host=f"host{i // 8}") for i in range(leaves)]
    switches.append(Node(name="spine", kind="switch"))
    pairs = [(rank, gpus + rank // 2) for rank in range(gpus)]
    pairs += [(gpus + leaf, gpus + leaves) for leaf in range(leaves)]
    for a, b in pairs:
        links += both(a, b, 25.0, 0.75)  # 25 GB/s: TE-CCL figure 15; 0.75 us: table 2
    return Topology(f"mi250:{hosts}", (*gpu_nodes(gpus, 16, "MI250"), *switches), tuple(links))


def dgx_a100(
    hosts: int,
    links: A100Links = "nvlink",
    *,
    nvlink_bandwidth_GBps: float = 300.0,  # A100 paper: 12 NVLinks of 25 GB/s; thesis chapter 6
    nvlink_latency_us: float = NVSWITCH_LATENCY_US,
    nic_bandwidth_GBps: float = 25.0,  # vendor: one 200 Gb/s NIC per GPU; thesis chapter 6
    nic_latency_us: float = NIC_LATENCY_US,
    pcie_bandwidth_GBps: float = 32.0,  # PCIe 4.0 x16; thesis chapter 6
    pcie_latency_us: float = PCIE_LATENCY_US,
    network: NetworkKind = "rail-only",
    leaf_hosts: int = LEAF_HOSTS,
    oversubscription: float = 1.0,
    spines: int = 1,
    spine_latency_us: float = SPINE_LATENCY_US,
) -> Topology:
    """Return DGX A100: 8 GPUs per host, one rail switch per GPU index between hosts. `links` selects the usable links.

    nvlink      NVSwitch in the host; each GPU's NIC is a link from the GPU to its rail
    no-nvlink   PCIe only: four PCIe switches per host, pcie{h}.0 to pcie{h}.3, each with 2 GPUs, a link pair with
                memory{h}, which stores and copies, and the NICs of its GPUs: links from the PCIe switch to two rails
    all         NVSwitch and PCIe; NICs on the PCIe switches

    Order of the links that exist: each GPU in rank order with its NVSwitch; each GPU with its PCIe switch; each PCIe
    switch with the memory; for each rail, each host with the rail. All switches are plain. One host has no rails.
    `network` is rail-only, rail-optimized or fat-tree; `Network` explains it and its options.
    """
    check_hosts("dgx_a100", "hosts", hosts, 8)
    if links not in get_args(A100Links):
        raise TopologyError(f"dgx_a100: links must be nvlink, no-nvlink or all, got {links!r}")
    nvlink = (nvlink_bandwidth_GBps, nvlink_latency_us)
    pcie = (pcie_bandwidth_GBps, pcie_latency_us)
    name = machine_name(dgx_a100, f"dgx_a100:{hosts}" + (f":{links}" if links != "nvlink" else ""), locals())
    wires = _network_of("dgx_a100", locals())
    if links == "nvlink":
        return _nvswitch_cluster(name, hosts, 8, _nvswitches(hosts), nvlink, wires, "A100")
    return _pcie_cluster(name, hosts, _nvswitches(hosts) if links == "all" else [], nvlink, pcie, wires)


def _nvswitch_hosts(
    kind: str,
    gpus: int,
    model: str,
    hosts: int,
    *,
    nvlink_bandwidth_GBps: float = 450.0,  # vendor: 18 NVLinks of 25 GB/s
    nvlink_latency_us: float = NVSWITCH_LATENCY_US,
    nic_bandwidth_GBps: float = 50.0,  # vendor: one 400 Gb/s NIC per GPU; for B200 and GB200 a ConnectX-7
    nic_latency_us: float = NIC_LATENCY_US,
    nvls: bool = True,
    network: NetworkKind = "rail-only",
    leaf_hosts: int = LEAF_HOSTS,
    oversubscription: float = 1.0,
    spines: int = 1,
    spine_latency_us: float = SPINE_LATENCY_US,
) -> Topology:
    """Return hosts of GPUs on an NVSwitch that copies and reduces (NVLS), and one NIC per GPU.

    Order of the links: each GPU in rank order with its NVSwitch; for each rail, the GPU of each host with the rail. One
    host has no rails. Without `nvls` the NVSwitch only forwards.
    `network` is rail-only, rail-optimized or fat-tree; `Network` explains it and its options.
    """
    check_hosts(kind, "racks" if kind == "gb200_nvl72" else "hosts", hosts, gpus)
    name = machine_name(_NVSWITCH_HOSTS[kind], f"{kind}:{hosts}", locals())
    nvlink, wires = (nvlink_bandwidth_GBps, nvlink_latency_us), _network_of(kind, locals())
    return _nvswitch_cluster(name, hosts, gpus, _nvswitches(hosts, copies=nvls, reduces=nvls), nvlink, wires, model)


dgx_h100 = partial(_nvswitch_hosts, "dgx_h100", 8, "H100")
dgx_h200 = partial(_nvswitch_hosts, "dgx_h200", 8, "H200")
"""As `dgx_h100`; the H200 differs from the H100 in its memory, not in its links."""
hgx_b200 = partial(_nvswitch_hosts, "hgx_b200", 8, "B200", nvlink_bandwidth_GBps=900.0)  # vendor: 18 NVLinks of 50 GB/s
gb200_nvl72 = partial(_nvswitch_hosts, "gb200_nvl72", 72, "GB200", nvlink_bandwidth_GBps=900.0)  # 130 TB/s per rack
"""72 GPUs per rack on one NVSwitch; a rack counts as one host."""
_NVSWITCH_HOSTS = {"dgx_h100": dgx_h100, "dgx_h200": dgx_h200, "hgx_b200": hgx_b200, "gb200_nvl72": gb200_nvl72}


def mi300x(
    hosts: int,
    *,
    xgmi_bandwidth_GBps: float = 64.0,  # vendor: 7 Infinity Fabric links of 128 GB/s for both directions together
    xgmi_latency_us: float = 0.6,  # no source; that of MI250, TE-CCL table 2
    nic_bandwidth_GBps: float = 50.0,  # vendor: one 400 Gb/s NIC per GPU
    nic_latency_us: float = NIC_LATENCY_US,
    network: NetworkKind = "rail-only",
    leaf_hosts: int = LEAF_HOSTS,
    oversubscription: float = 1.0,
    spines: int = 1,
    spine_latency_us: float = SPINE_LATENCY_US,
) -> Topology:
    """Return AMD MI300X: 8 GPUs per host, all linked with each other by xGMI, and one NIC per GPU.

    Order of the links: for each host every two GPUs, (0, 1), (0, 2), ...; for each rail, the GPU of each host with the
    rail. One host has no rails. The network as in `dgx_h100`.
    """
    check_hosts("mi300x", "hosts", hosts, 8)
    name = machine_name(mi300x, f"mi300x:{hosts}", locals())
    pairs = [(first + a, first + b) for first in range(0, 8 * hosts, 8) for a, b in combinations(range(8), 2)]
    links = [k for a, b in pairs for k in both(a, b, xgmi_bandwidth_GBps, xgmi_latency_us)]
    nodes = gpu_nodes(8 * hosts, 8, "MI300X")
    return connect_hosts(name, hosts, nodes, links, range(8 * hosts), _network_of("mi300x", locals()))


def internal1(hosts: int, *, bandwidth_GBps: float = 25.0) -> Topology:
    """Return a stand-in for TE-CCL's Internal 1: 4 GPUs and 8 links per host, here a ring; one switch connects hosts.

    Order of the links: the ring of each host; each GPU in rank order with the switch. The bandwidth is not published
    (TE-CCL section 6: mostly the same on all links), so all links have the same value.
    """
    return _internal(internal1, "internal1", hosts, 4, bandwidth_GBps)


def internal2(hosts: int, *, bandwidth_GBps: float = 25.0) -> Topology:
    """Return a stand-in for TE-CCL's Internal 2: 2 GPUs and 2 links per host; one switch connects hosts.

    The order of the links is that of `internal1`.
    """
    return _internal(internal2, "internal2", hosts, 2, bandwidth_GBps)


def _internal(function: Callable[..., Topology], base: str, hosts: int, gpus: int, bandwidth_GBps: float) -> Topology:
    check_hosts(base, "hosts", hosts, gpus)
    name = machine_name(function, f"{base}:{hosts}", locals())
    total = hosts * gpus
    links: list[Link] = []
    for first in range(0, total, gpus):
        for i in range(gpus if gpus > 2 else 1):
            links += both(first + i, first + (i + 1) % gpus, bandwidth_GBps, 0.6)  # 0.6 us: TE-CCL table 2
    if hosts == 1:
        return Topology(name, tuple(gpu_nodes(total, gpus)), tuple(links))
    for rank in range(total):
        links += both(rank, total, bandwidth_GBps, 0.75)  # 0.75 us: TE-CCL table 2
    return Topology(name, (*gpu_nodes(total, gpus), Node(name="network", kind="switch")), tuple(links))


def _dgx1_links(first: int) -> list[Link]:
    return [
        Link(src=first + src, dst=first + dst, bandwidth_GBps=25.0 * units, latency_us=0.7)  # 0.7 us: TE-CCL figure 14
        for src, row in enumerate(_DGX1_UNITS)
        for dst, units in enumerate(row)
        if units
    ]


def _nvswitches(hosts: int, *, copies: bool = False, reduces: bool = False) -> list[Node]:
    return [
        Node(name=f"nvswitch{h}", kind="switch", host=f"host{h}", copies=copies, reduces=reduces) for h in range(hosts)
    ]


def _network(
    name: str, senders: Sequence[int], receivers: Sequence[int], switch: int, bandwidth_GBps: float, latency_us: float
) -> tuple[list[Node], list[Link]]:
    """Return links from one sender to one receiver per host: direct for two hosts, through a plain switch for more."""
    if len(senders) == 1:
        return [], []
    if len(senders) == 2:
        pairs = list(zip(senders, reversed(receivers), strict=True))
    else:
        pairs = [(sender, switch) for sender in senders] + [(switch, receiver) for receiver in receivers]
    links = [Link(src=a, dst=b, bandwidth_GBps=bandwidth_GBps, latency_us=latency_us) for a, b in pairs]
    return [Node(name=name, kind="switch")] if len(senders) > 2 else [], links


def _network_of(machine: str, options: Mapping[str, Any]) -> Network:
    """The network that the options of a machine describe."""
    names = ("nic_bandwidth_GBps", "nic_latency_us", "leaf_hosts", "oversubscription", "spines", "spine_latency_us")
    network = Network(kind=options["network"], **{name: options[name] for name in names})
    network.check(machine)
    return network


def _nvswitch_cluster(
    name: str,
    hosts: int,
    gpus: int,
    nvswitches: list[Node],
    nvlink: tuple[float, float],
    network: Network,
    model: str,
) -> Topology:
    """Return hosts of GPUs on one NVSwitch each, with one NIC per GPU."""
    total = hosts * gpus
    links = [k for rank in range(total) for k in both(rank, total + rank // gpus, *nvlink)]
    return connect_hosts(name, hosts, [*gpu_nodes(total, gpus, model), *nvswitches], links, range(total), network)


def _pcie_cluster(
    name: str,
    hosts: int,
    nvswitches: list[Node],
    nvlink: tuple[float, float],
    pcie: tuple[float, float],
    network: Network,
) -> Topology:
    """Return DGX A100 with its PCIe switches: one per two GPUs, each with an uplink to the host memory and two NICs."""
    gpus = 8 * hosts
    first_pcie = gpus + len(nvswitches)
    first_memory = first_pcie + 4 * hosts
    nodes = [*gpu_nodes(gpus, 8, "A100"), *nvswitches]
    nodes += [Node(name=f"pcie{i // 4}.{i % 4}", kind="switch", host=f"host{i // 4}") for i in range(4 * hosts)]
    nodes += [Node(name=f"memory{h}", kind="memory", host=f"host{h}") for h in range(hosts)]
    links = [k for rank in range(gpus) for k in both(rank, gpus + rank // 8, *nvlink)] if nvswitches else []
    links += [k for rank in range(gpus) for k in both(rank, first_pcie + rank // 2, *pcie, kind="pcie")]
    links += [k for i in range(4 * hosts) for k in both(first_pcie + i, first_memory + i // 4, *pcie, kind="pcie")]
    nics = [first_pcie + rank // 2 for rank in range(gpus)]
    return connect_hosts(name, hosts, nodes, links, nics, network)
