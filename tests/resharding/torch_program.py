"""One process of the tests with gloo: real DTensors, several pairs of layouts, every byte compared.

Run as `python -m tests.resharding.torch_program RANK RANKS PORT PLANS...`; prints "ok PAIRS".
"""

import os
import sys
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import flowccl.torch
from flowccl import machine
from flowccl.errors import InputError
from flowccl.resharding.plan_files import plan_from_json, plan_to_json
from flowccl.resharding.plan_search import ReshardParams
from flowccl.resharding.planning import reshard as plan_reshard

R, S0, S1 = Replicate(), Shard(0), Shard(1)
DTYPES = (torch.float32, torch.bfloat16, torch.int8, torch.float64, torch.float16, torch.bool, torch.int64)
PAIRS = {  # of 4 ranks: mesh shape and ranks, placements; source and target
    4: [
        (((4,), range(4), [S0]), ((4,), range(4), [S1])),
        (((4,), range(4), [S0]), ((2, 2), range(4), [R, S1])),
        (((2, 2), range(4), [S0, S0]), ((4,), range(4), [S0])),
        (((2, 2), range(4), [_StridedShard(0, split_factor=2), S0]), ((2, 2), range(4), [R, S0])),
        (((2,), [0, 1], [S0]), ((2,), [2, 3], [S1])),
        (((1,), [0], [R]), ((3,), [1, 2, 3], [R])),
        (((2, 2), range(4), [R, S0]), ((4,), [3, 2, 1, 0], [S1])),
        (((3,), [0, 1, 2], [S0]), ((4,), range(4), [S0])),
        (((2, 2), range(4), [S1, S0]), ((2, 2), range(4), [S0, S1])),
        (((4,), range(4), [S1]), ((2, 2), range(4), [S0, S1])),
    ],
    6: [
        (((4,), range(4), [S0]), ((2,), [4, 5], [S1])),
        (((2, 2), range(4), [R, S0]), ((2,), [4, 5], [R])),
        (((6,), range(6), [S0]), ((2, 3), range(6), [S1, S0])),
        (((2, 3), range(6), [S0, S1]), ((3, 2), range(6), [R, S0])),
        (((3,), [0, 1, 2], [S1]), ((3,), [3, 4, 5], [S0])),
    ],
    8: [
        (((8,), range(8), [S0]), ((2, 4), range(8), [R, S1])),
        (((4,), range(4), [S0]), ((2, 2), range(4, 8), [R, S1])),
        (((2, 2, 2), range(8), [S0, R, S1]), ((8,), range(8), [S1])),
        (((2, 4), range(8), [_StridedShard(0, split_factor=4), S0]), ((8,), range(8), [S1])),
        (((1,), [0], [R]), ((7,), range(1, 8), [R])),
    ],
}


def whole_tensors(elements):
    """The same values on every rank: uneven shapes, several dtypes, a scalar."""
    random = torch.Generator().manual_seed(1)
    rows = max(elements // 1001, 7)
    tensors = {}
    for number, dtype in enumerate(DTYPES):
        shape = [(rows // (number + 1) + 3, 1001), (rows // (number + 1) * 3 + 1, 333), (5, 6)][number % 3]
        values = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=random)
        if dtype == torch.bool:
            values &= 1
        tensors[f"w{number}"] = values.view(dtype).reshape(shape)
    return tensors


def placed(whole, side, fill=True):
    shape, ranks, placements = side
    mesh = DeviceMesh("cpu", torch.tensor(list(ranks)).reshape(shape))
    if dist.get_rank() not in list(ranks):
        return {}
    found = {}
    for name, tensor in whole.items():
        local = tensor
        for axis, placement in enumerate(placements):
            if not placement.is_replicate():
                at = mesh.get_coordinate()[axis]
                parts, _ = placement._split_tensor(local, mesh.size(axis), with_padding=False, contiguous=True)
                local = parts[at].contiguous()
        local = local.clone() if fill else torch.zeros_like(local)
        found[name] = DTensor.from_local(
            local, mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
        )
    return found


def check_pair(ranks, pair, elements, slices):
    return check_tensors(ranks, pair, whole_tensors(elements), slices)


def check_tensors(ranks, pair, whole, slices=1):
    source, target, right = placed(whole, pair[0]), placed(whole, pair[1], fill=False), placed(whole, pair[1])
    layouts = flowccl.torch.layout(source), flowccl.torch.layout(target)
    made = [None]
    if dist.get_rank() == 0:
        params = ReshardParams(most_deliveries=400, per_round=(1, 2), depth_weights=(0.3,))
        found = plan_reshard(machine(f"full:{ranks}"), *layouts, time_limit_s=0.5, params=params)
        made = [plan_to_json(replace(found.plan, slices=slices))]
    dist.broadcast_object_list(made)
    plan = plan_from_json(made[0])
    assert (plan.source.fingerprint, plan.target.fingerprint) == tuple(one.fingerprint for one in layouts)
    flowccl.torch.reshard(source, target, plan)
    for name, tensor in target.items():
        got, expected = tensor.to_local(), right[name].to_local()
        assert torch.equal(got.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)), (pair, name)
    return source, target, plan


def has_one_rule(pair):
    """Whether this torch divides uneven strided shards by one rule; versions up to 2.9 have two."""
    if not any(isinstance(one, _StridedShard) for side in pair for one in side[2]):
        return True
    strided = _StridedShard(0, split_factor=2)
    return strided._split_tensor(torch.arange(9), 4, with_padding=False)[0][0].tolist() == [0, 1, 5]


def check_strided():
    """Ten elements in 2 x 2 strided parts: both rules of torch give the same sizes, but other elements."""
    pair = PAIRS[4][3]
    even, uneven = {"w": torch.arange(12)}, {"w": torch.arange(10)}
    check_tensors(4, pair, even)
    if has_one_rule(pair):
        check_tensors(4, pair, uneven)
        return
    with pytest.raises(InputError, match=r"rank 0: tensor w: .* has two rules to divide the 10 elements"):
        check_tensors(4, pair, uneven)


def refused(text, *call):
    with pytest.raises(InputError) as found:
        flowccl.torch.reshard(*call)
    assert text in str(found.value), str(found.value)


def check_errors(source, target, plan):
    """Every rank raises the same error, whichever rank has the wrong tensors."""
    rank = dist.get_rank()
    cast = {name: tensor.to(torch.float32) if rank == 2 and name == "w1" else tensor for name, tensor in target.items()}
    refused("rank 2 does not fit the plan: target tensor w1: is float32, and bfloat16 in the plan", source, cast, plan)
    lost = {name: tensor for name, tensor in source.items() if rank != 1 or name != "w0"}
    refused("rank 1 does not fit the plan: source tensor w0: rank 1 does not have it", lost, target, plan)
    refused("rank 0 does not fit the plan: ", target, source, plan)
    mixed = source | ({"step": 7} if rank == 3 else {})
    refused(
        "rank 3 does not fit the plan: step is of type int; only tensors move, so leave it out", mixed, target, plan
    )
    other = replace(plan, slices=plan.slices + (rank == 1))
    refused("rank 1 has another plan than rank 0", source, target, other)
    with pytest.raises(InputError, match="rank 3: step is of type int; only tensors move"):
        flowccl.torch.layout(mixed)


def main():
    rank, ranks, port, elements = (int(text) for text in sys.argv[1:5])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    pairs = PAIRS[ranks][: int(sys.argv[5])] if len(sys.argv) > 5 else PAIRS[ranks]
    for number, pair in enumerate(pairs):
        if not has_one_rule(pair):
            with pytest.raises(InputError, match="has two rules to divide"):
                check_pair(ranks, pair, elements, slices=1)
            continue
        state = check_pair(ranks, pair, elements, slices=1 + 2 * (number % 2))
        if number == 0 and ranks == 4:  # the ranks that it names are those of this pair
            check_errors(*state)
            check_strided()
    dist.barrier()
    dist.destroy_process_group()
    print("ok", len(pairs))


if __name__ == "__main__":
    main()
