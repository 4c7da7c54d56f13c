"""A program with random collectives: `python -m tests.torch.random_calls FIRST COUNT OUT`; one line a sequence.

A sequence is a few calls on the default group and on sub-groups: any operation, size, type and layout, in place,
coalesced, sync and async; async calls are waited for in another order. All ranks draw the same numbers.
"""

import hashlib
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

TYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.bfloat16, torch.uint8)
SIZES = (1, 3, 16, 17, 256, 1000, 4096, 20_001)
CALLS = 6


def values(draw: random.Random, rank: int, count: int, dtype: Any) -> Any:
    """Small whole numbers, whose sums are exact in every type and order; they differ between ranks."""
    start = draw.randrange(5)
    return ((torch.arange(count) + start + 2 * rank) % 5).to(dtype)


class Sequence:
    """The calls of one sequence on one rank, and their results."""

    def __init__(self, draw: random.Random, groups: list[tuple[Any, list[int]]]) -> None:
        self.draw, self.groups, self.call = draw, groups, draw
        self.me = dist.get_rank()
        self.results: list[Any] = []
        self.works: list[Any] = []

    def run(self) -> str:
        for _ in range(CALLS):
            group, ranks = self.draw.choice(self.groups)
            kind = self.draw.choice(KINDS)
            count, dtype = self.draw.choice(SIZES), self.draw.choice(TYPES)
            later = self.draw.random() < 0.5
            self.call = random.Random(self.draw.random())  # for this call, in which only some ranks take part
            given = values(self.draw, self.me, count * len(ranks), dtype)
            order = self.draw.random()
            if self.me not in ranks:
                continue
            kind(self, group, ranks, given, count, later)
            if order < 0.2:
                self.wait(reverse=order < 0.1)
        self.wait(reverse=self.draw.random() < 0.5)
        digest = hashlib.sha256()
        for tensor in self.results:
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def wait(self, reverse: bool) -> None:
        for work in reversed(self.works) if reverse else self.works:
            work.wait()
        self.works = []

    def keep(self, work: Any, *tensors: Any) -> None:
        if work is not None:
            self.works.append(work)
        self.results += tensors


def reduce_all(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    op = s.call.choice((dist.ReduceOp.SUM, dist.ReduceOp.SUM, dist.ReduceOp.SUM, dist.ReduceOp.MAX))
    if s.call.random() < 0.3 and given.numel() % 2 == 0:
        whole = given.view(2, -1).t().contiguous()
        given = whole.view(-1)
    s.keep(dist.all_reduce(given, op, group=group, async_op=later), given)


def gather_all(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    output = torch.zeros_like(given)
    mine = given[:count]
    if s.call.random() < 0.3:  # in place
        at = ranks.index(s.me)
        output[at * count : (at + 1) * count] = mine
        mine = output[at * count : (at + 1) * count]
    s.keep(dist.all_gather_into_tensor(output, mine, group=group, async_op=later), output)


def gather_list(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    outputs = [torch.zeros_like(given[:count]) for _ in ranks]
    s.keep(dist.all_gather(outputs, given[:count], group=group, async_op=later), *outputs)


def scatter_sum(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    output = torch.zeros_like(given[:count])
    s.keep(dist.reduce_scatter_tensor(output, given, group=group, async_op=later), output)


def exchange(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    output = torch.zeros_like(given)
    if s.call.random() < 0.3:
        splits = [count] * len(ranks)
        s.keep(dist.all_to_all_single(output, given, splits, splits, group=group, async_op=later), output)
    else:
        s.keep(dist.all_to_all_single(output, given, group=group, async_op=later), output)


def copy_root(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    s.keep(dist.broadcast(given, ranks[-1], group=group, async_op=later), given)


def coalesced(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    parts = [part.clone() for part in given.chunk(3)]
    with dist._coalescing_manager(group=group, async_ops=later) as manager:
        for part in parts:
            dist.all_reduce(part, group=group)
    s.keep(manager if later else None, *parts)


def objects(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    found: list[Any] = [None] * len(ranks)
    dist.all_gather_object(found, (s.me, count), group=group)
    s.keep(None, torch.tensor(found))


def ring(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    at, output = ranks.index(s.me), torch.zeros_like(given)
    send = dist.P2POp(dist.isend, given, ranks[(at + 1) % len(ranks)], group)
    receive = dist.P2POp(dist.irecv, output, ranks[at - 1], group)
    for work in dist.batch_isend_irecv([send, receive] if at % 2 else [receive, send]):
        work.wait()
    s.keep(None, output)


def meet(s: Sequence, group: Any, ranks: list[int], given: Any, count: int, later: bool) -> None:
    dist.barrier(group=group)


KINDS = (
    reduce_all,
    reduce_all,
    gather_all,
    gather_list,
    scatter_sum,
    exchange,
    copy_root,
    coalesced,
    objects,
    ring,
    meet,
)


def main(first: int, count: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    members = [list(range(size)), list(range(size)), list(range(size))[::-1], [0, 1], list(range(1, size))]
    groups: list[tuple[Any, list[int]]] = [(dist.group.WORLD, members[0])]
    groups += [(dist.new_group(ranks), sorted(ranks)) for ranks in members[1:]]
    with open(f"{out}.{rank}", "w") as file:
        for seed in range(first, first + count):
            print(seed, Sequence(random.Random(seed), groups).run(), file=file, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
