"""Plans for the runtimes of collectives: for layouts between which a named collective moves the bytes.

A runtime has one input and one output buffer on each rank, in equal blocks. So a resharding is one of its collectives
if there is one tensor, all GPUs take part, and every block lies where the collective has it.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.resharding.cells import RangeBlock, range_block
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.traffic import Traffic
from flowccl.result import Result
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]


class NamedResharding(NamedTuple):
    """A collective that moves the bytes of a resharding; `size_bytes` as nccl-tests counts."""

    name: str
    size_bytes: int
    root: int = 0


def collective_for(found: Traffic, topology: Topology, runtime: RuntimeProfile) -> NamedResharding:
    """Return the collective of a runtime that does this resharding; raise DemandError if there is none."""
    why = f"--for {runtime.name}: runtimes load collectives of all GPUs on one buffer with equal blocks"
    one = _named(found, topology.num_gpus)
    if one is None:
        raise DemandError(
            f"{why}, and this resharding is none (allgather, alltoall or broadcast of one tensor); leave --for out, "
            "and run the plan with flowccl.torch.reshard"
        )
    assert runtime.limits is not None
    check_collective(runtime.limits, one.name)
    unit = ALIGNMENT_BYTES * topology.num_gpus
    if one.size_bytes % unit:
        raise DemandError(
            f"--for {runtime.name}: this resharding is the {one.name} of {one.size_bytes} bytes, which is not a "
            f"multiple of {unit} ({ALIGNMENT_BYTES} for each GPU), so no program serves it"
        )
    return one


def plan_for_runtime(
    topology: Topology, found: Traffic, one: NamedResharding, runtime: RuntimeProfile, **options: Any
) -> tuple[ReshardPlan, Result]:
    """Return a plan that the runtime can run, and the result of its synthesis; `options` are those of `synthesize`."""
    result = synthesize(topology, one.name, one.size_bytes, root=one.root, runtime=runtime, **options)
    cls, begin, end = _spans(found, result.schedule)
    stage = np.zeros(len(cls), dtype=np.int64)
    return ReshardPlan(found.source, found.target, result.schedule, cls, begin, end, stage), result


def _spans(found: Traffic, schedule: Schedule) -> tuple[I64, I64, I64]:
    """The class of each chunk, and its bytes in the stream of the class: the chunks of a class follow each other."""
    number = {(one.sources, one.missing): k for k, one in enumerate(found.classes)}
    demand, reached = schedule.demand, dict.fromkeys(number.values(), 0)
    cls, begin = [], []
    for chunk, size in enumerate(demand.chunk_bytes.tolist()):
        ends = tuple(sorted(demand.destinations(chunk).tolist()))
        cls.append(number[(int(demand.source[chunk]),), ends])
        begin.append(reached[cls[-1]])
        reached[cls[-1]] += size
    start = np.array(begin, dtype=np.int64)
    return np.array(cls, dtype=np.int64), start, start + demand.chunk_bytes


# -- which collective it is -------------------------------------------------------------------------------------------


class _PlacedCell(NamedTuple):
    """Bytes of a tensor that one rank has: at `begin` in its memory, and at `places` in that of each target."""

    source: int
    targets: tuple[int, ...]
    begin: int
    places: tuple[int, ...]
    bytes: int


def _named(found: Traffic, gpus: int) -> NamedResharding | None:
    """The collective that a resharding is, if it is one."""
    if len(found.target.tensors) != 1 or len(found.source.tensors) != 1 or gpus < 2:
        return None
    try:
        size, cells = found.target.bytes, list(_placed(range_block(found.source.tensors[0], found.target.tensors[0])))
    except DemandError:  # too many ranges to be blocks
        return None
    if len(cells) == 0 or any(cell.source < 0 for cell in cells):
        return None
    for name, is_one, total in (
        ("broadcast", _is_broadcast, size),
        ("allgather", _is_allgather, size),
        ("alltoall", _is_alltoall, size // gpus),
    ):
        if is_one(cells, gpus, size):
            return NamedResharding(name, total, cells[0].source if name == "broadcast" else 0)
    return None


def _placed(block: RangeBlock) -> Iterator[_PlacedCell]:
    """The cells that some rank wants; the source is -1 where several ranks have the bytes."""
    for number, ((sources, targets), size) in enumerate(zip(block.keys, block.size.tolist(), strict=True)):
        if targets and size:
            source = sources[0] if len(sources) == 1 else -1
            places = tuple(block.local["target"][rank, number] for rank in targets)
            yield _PlacedCell(source, targets, block.local["source"][sources[0], number], places, size)


def _is_broadcast(cells: list[_PlacedCell], gpus: int, size: int) -> bool:
    """Whether one rank has all bytes, and all others want them, in the same order."""
    root, total = cells[0].source, sum(cell.bytes for cell in cells)
    others = set(range(gpus)) - {root}
    alike = all(
        cell.source == root and set(cell.targets) - {root} == others and set(cell.places) == {cell.begin}
        for cell in cells
    )
    return alike and total == size


def _is_allgather(cells: list[_PlacedCell], gpus: int, size: int) -> bool:
    """Whether rank r has a block, and all ranks want it as block r."""
    block = size // gpus
    return _are_blocks(cells, [(r, None) for r in range(gpus)], block) and all(
        cell.targets == tuple(range(gpus)) and set(cell.places) == {cell.source * block + cell.begin} for cell in cells
    )


def _is_alltoall(cells: list[_PlacedCell], gpus: int, size: int) -> bool:
    """Whether block d of rank s is wanted by rank d alone, as block s."""
    block = size // gpus // gpus
    if any(len(cell.targets) != 1 for cell in cells):
        return False
    inside = [(cell.begin - cell.targets[0] * block, cell.places[0] - cell.source * block) for cell in cells]
    alike = all(here == there and 0 <= here < block for here, there in inside)
    return alike and _are_blocks(cells, [(s, d) for s in range(gpus) for d in range(gpus)], block)


def _are_blocks(cells: list[_PlacedCell], expected: list[tuple[int, int | None]], block: int) -> bool:
    """Whether the cells from a rank, or from a rank to a rank, are blocks of equal size, one for each expected pair."""
    total: dict[tuple[int, int | None], int] = dict.fromkeys(expected, 0)
    key: Callable[[_PlacedCell], tuple[int, int | None]] = (
        (lambda cell: (cell.source, None)) if expected[0][1] is None else (lambda cell: (cell.source, cell.targets[0]))
    )
    for cell in cells:
        if key(cell) not in total:
            return False
        total[key(cell)] += cell.bytes
    return block > 0 and set(total.values()) == {block}
