"""A machine as a runtime sees it: message costs on the links, and only those in-network operations that it has."""

from dataclasses import replace

from flowccl.errors import InputError
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.topology.gpu_models import GPU_MODELS
from flowccl.topology.topology import Topology


def used_by(topology: Topology, profile: RuntimeProfile, *, in_network: bool = False) -> Topology:
    """Return the machine as a runtime uses it: its links have no overheads of their own, and switches only forward.

    With `in_network`, switches that join the GPUs of one host with NVLS also reduce and copy, if the runtime has
    operations for that.
    """
    if profile.is_ideal:
        return topology
    able = _nvls_switches(topology) if in_network and profile.nvls else set()
    nodes = [
        replace(node, copies=False, reduces=False) if node.kind == "switch" and index not in able else node
        for index, node in enumerate(topology.nodes)
    ]
    links = [replace(link, overhead_us=0.0) if link.overhead_us else link for link in topology.links]
    return replace(topology, nodes=tuple(nodes), links=tuple(links))


def with_costs_in_links(topology: Topology, profile: RuntimeProfile) -> Topology:
    """Return a machine whose links stand for the costs of messages, for methods that know only links.

    The overhead is paid on the link that leaves the sender, and the signal arrives with the link that enters the
    receiver.
    """
    stores, links = topology.stores, []
    for link, kind in zip(topology.links, topology.link_kinds, strict=True):
        cost = profile.costs.of(kind)
        overhead_us = cost.overhead_us if stores[link.src] else 0.0
        latency_us = link.latency_us + (cost.signal_us if stores[link.dst] else 0.0)
        links.append(replace(link, overhead_us=overhead_us, latency_us=latency_us))
    return replace(topology, links=tuple(links))


def on_runtime(topology: Topology, profile: RuntimeProfile) -> Topology:
    """Return the machine as a runtime uses it, with the costs of messages in its links."""
    return topology if profile.is_ideal else with_costs_in_links(used_by(topology, profile), profile)


def least_costs(topology: Topology, profile: RuntimeProfile) -> Topology:
    """Return a machine on which no schedule is later than on the runtime, for lower bounds.

    A message takes at least its overhead before its first byte arrives, and its signal where it cannot be a packet.
    Messages of a link overlap, and switches do all that the runtime can let them do.
    """
    machine = used_by(topology, profile, in_network=True)
    packets = profile.limits is not None and profile.limits.one_sided and "LL" in profile.limits.protocols
    stores, links = machine.stores, []
    proxy_us = [us for model, us in profile.proxy_us if any(node.model == model for node in topology.nodes)]
    for link, kind in zip(machine.links, machine.link_kinds, strict=True):
        cost = profile.costs.of(kind)
        overhead_us = min([cost.overhead_us, *(proxy_us if cost.proxy else [])])
        signal_us = 0.0 if packets and not cost.proxy else cost.signal_us
        more_us = (overhead_us if stores[link.src] else 0.0) + (signal_us if stores[link.dst] else 0.0)
        links.append(replace(link, latency_us=link.latency_us + more_us))
    return replace(machine, links=tuple(links))


def largest_group(topology: Topology, profile: RuntimeProfile) -> int:
    """Return the GPUs of the largest group for which a runtime lets a switch reduce; 0 without such operations."""
    groups = nvls_groups(topology).values() if profile.nvls and not profile.is_ideal else ()
    return max(map(len, groups), default=0)


def _nvls_switches(topology: Topology) -> set[int]:
    """Return the switches whose neighbours are GPUs of one host with NVLS."""
    groups, result = nvls_groups(topology), set()
    for switch in range(topology.num_gpus, len(topology.nodes)):
        beside = {*topology.link_src[topology.link_dst == switch].tolist()}
        beside |= {*topology.link_dst[topology.link_src == switch].tolist()}
        around = {groups.get(node) for node in beside}
        if len(around) == 1 and None not in around:
            result.add(switch)
    return result


def nvls_groups(topology: Topology) -> dict[int, tuple[int, ...]]:
    """Return, for each GPU whose host has NVLS, the GPUs of that host.

    All GPUs of the host must be of a model with NVLS; where the machine names no model, one of its switches must
    reduce. A threadblock has channels to at most 16 other GPUs, so larger hosts have no group.
    """
    gpus = topology.nodes[: topology.num_gpus]
    reduces = any(node.reduces for node in topology.nodes[topology.num_gpus :])
    hosts: dict[str, list[int]] = {}
    for rank, node in enumerate(gpus):
        hosts.setdefault(node.host, []).append(rank)
    result: dict[int, tuple[int, ...]] = {}
    for ranks in hosts.values():
        models = {gpus[rank].model for rank in ranks}
        has_nvls = all(GPU_MODELS[model].nvls if model in GPU_MODELS else not model and reduces for model in models)
        if has_nvls and 2 <= len(ranks) <= CHANNELS_PER_BLOCK + 1:
            result |= dict.fromkeys(ranks, tuple(ranks))
    return result


def sms_of(topology: Topology, given: int | None = None) -> int:
    """Return the SMs of the GPUs, the fewest where they differ; `given` says it where the machine does not."""
    if given is not None:
        if given < 1:
            raise InputError(f"a GPU has at least 1 SM, got {given}")
        return given
    models = {node.model for node in topology.nodes[: topology.num_gpus]}
    unknown = sorted(models - GPU_MODELS.keys())
    if unknown:
        what = f"GPU model {unknown[0]!r} is not known" if unknown[0] else "the machine does not name its GPU model"
        raise InputError(
            f"{what}, so the number of SMs is not known; give it with --sms, or write a model in the topology file "
            f"({', '.join(GPU_MODELS)})"
        )
    return min(GPU_MODELS[model].sms for model in models)


def known_sms(topology: Topology, given: int | None = None) -> int | None:
    """Return the SMs of the GPUs, None where neither the machine nor `given` says it."""
    models = {node.model for node in topology.nodes[: topology.num_gpus]}
    return sms_of(topology, given) if given is not None or models <= GPU_MODELS.keys() else None
