"""Layouts of the cases of docs/reshard.md, at any size."""

from flowccl import machine
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout
from flowccl.topology.topology import Link, Node, Topology

R = Placement()


def shard(dim):
    return Placement(dim)


def tensors(name, count, shape, mesh, placements):
    return [TensorLayout(f"{name}{n}", shape, 2, "bfloat16", mesh, placements) for n in range(count)]


def layouts(count, shape, source, target):
    """The same tensors on two meshes; a side is (mesh shape, ranks, placements)."""
    sides = ((Mesh(size, tuple(ranks)), placements) for size, ranks, placements in (source, target))
    return tuple(Layout(tensors("w", count, shape, *side)) for side in sides)


def trainers_to_replicas(count=100, shape=(8000, 10000)):
    """8 trainers with FSDP shards to two engines of 8 GPUs with tensor parallelism, on three hosts."""
    sides = ((8,), range(8), (shard(0),)), ((2, 8), range(8, 24), (R, shard(1)))
    return machine("dgx_h100:3"), *layouts(count, shape, *sides)


def one_to_all(count=100, shape=(8000, 10000)):
    """One rank to 15 others, on four hosts of 4 GPUs with 4 NICs of 25 GB/s."""
    sides = ((1,), [0], (R,)), ((15,), range(1, 16), (R,))
    return four_hosts(), *layouts(count, shape, *sides)


def stages_to_tensor_parallel(same=True, count=10, shape=(8000, 10000)):
    """Pipeline parallel 4 x tensor parallel 2 to tensor parallel 8, on the same GPUs or on the next host."""
    rows = [
        tensor
        for stage in range(4)
        for tensor in tensors(f"stage{stage}.", count, shape, Mesh((2,), (2 * stage, 2 * stage + 1)), (shard(0),))
    ]
    mesh = Mesh((8,), tuple(range(8) if same else range(8, 16)))
    after = [TensorLayout(one.name, one.shape, 2, "bfloat16", mesh, (shard(0),)) for one in rows]
    return machine("dgx_h100:1" if same else "dgx_h100:2"), Layout(rows), Layout(after)


def many_to_many(replicas=True, count=1000, shape=(10000, 10000)):
    """64 trainers to 64 GPUs of engines, on 16 hosts: 8 engines of 8 GPUs, or one of 64."""
    engines = ((8, 8), range(64, 128), (R, shard(1))) if replicas else ((64,), range(64, 128), (shard(1),))
    return machine("dgx_h100:16"), *layouts(count, shape, ((64,), range(64), (shard(0),)), engines)


def four_hosts():
    """Four hosts of 4 GPUs on NVLink (200 GB/s), each GPU with a NIC of 25 GB/s to one network switch."""
    nodes = [Node(name=f"gpu{rank}", host=f"host{rank // 4}") for rank in range(16)]
    nodes += [Node(name=f"nvswitch{host}", kind="switch", host=f"host{host}") for host in range(4)]
    nodes.append(Node(name="net", kind="switch"))
    links = []
    for rank in range(16):
        for switch, GBps, latency_us in ((16 + rank // 4, 200, 0.5), (20, 25, 2.0)):
            for a, b in ((rank, switch), (switch, rank)):
                links.append(Link(src=a, dst=b, bandwidth_GBps=GBps, latency_us=latency_us))
    return Topology("four-hosts", tuple(nodes), tuple(links))
