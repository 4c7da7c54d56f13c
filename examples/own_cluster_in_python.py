"""Describe a cluster in Python: two hosts of four GPUs, fast links inside a host and one network card per host."""

from flowccl import Link, Node, Topology, synthesize, verify

HOSTS, GPUS = 2, 4


def cluster() -> Topology:
    """GPUs of a host share an NVLink switch; GPU 0 of each host has a network card on the network switch."""
    gpus = [Node(name=f"host{h}.gpu{g}", host=f"host{h}") for h in range(HOSTS) for g in range(GPUS)]
    nvlink = [Node(name=f"host{h}.nvlink", kind="switch", host=f"host{h}") for h in range(HOSTS)]
    network = Node(name="network", kind="switch")
    nodes = (*gpus, *nvlink, network)  # GPUs come first: the index of a GPU is its rank
    links: list[Link] = []

    def connect(a: int, b: int, bandwidth_GBps: float, latency_us: float) -> None:
        for src, dst in ((a, b), (b, a)):
            links.append(Link(src=src, dst=dst, bandwidth_GBps=bandwidth_GBps, latency_us=latency_us))

    for rank in range(HOSTS * GPUS):
        connect(rank, HOSTS * GPUS + rank // GPUS, bandwidth_GBps=300, latency_us=0.35)
    for host in range(HOSTS):
        connect(host * GPUS, nodes.index(network), bandwidth_GBps=25, latency_us=1.3)
    return Topology("two hosts", nodes, tuple(links))


def main() -> None:
    result = synthesize(cluster(), "allgather", 1_000_000, method="greedy", steps=20)
    print(f"{result.schedule.finish_us:.2f} us in {len(result.schedule)} transfers")
    print(f"no schedule is faster than {result.bound.us:.2f} us: {result.bound.witness}")
    print(f"gap {result.gap:.2%}")
    assert verify(result.schedule) == []
    assert result.bound.us <= result.schedule.finish_us


if __name__ == "__main__":
    main()
