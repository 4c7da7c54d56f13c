"""The operations of all threadblocks of an MSCCL++ plan as text, with the tables of each threadblock."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.export.formats.plan_text import words_of
from flowccl.export.lowering.actions import Channels
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.dependencies import Ordered
from flowccl.export.lowering.uneven import Units
from flowccl.runtimes.execution import Execution
from flowccl.schedule.schedule import Schedule
from flowccl.topology.neighbours import neighbours

if TYPE_CHECKING:
    from flowccl.export.formats.plan_text_kernels import Hints

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WrittenBlocks:
    """The threadblocks that do something, by GPU: their text, the number of operations, and their tables.

    Threadblock b has five tables, from number 5 * b on: channels inside the host and to NICs, buffers of other GPUs
    (4 * GPU + buffer) on both, and switches (4 * group + buffer).
    """

    text: NDArray[np.uint8]
    rank: I64
    begin: I64
    end: I64
    operations: I64
    table_ptr: I64
    member: I64
    groups: list[tuple[int, ...]]

    def sizes(self, table: int) -> I64:
        """Return how many members a table of each threadblock has."""
        return np.diff(self.table_ptr)[table::5]


def written_blocks(
    schedule: Schedule,
    execution: Execution,
    built: Built,
    ordered: Ordered,
    units: Units,
    packets: I64,
    unit_bytes: int,
) -> WrittenBlocks:
    """Return the text of all threadblocks; with `unit_bytes` they repeat what they do for each part of a chunk."""
    from flowccl.export.formats.plan_row_kernels import PlanActions
    from flowccl.export.formats.plan_text_kernels import WORDS
    from flowccl.export.formats.plan_write_kernels import write_operations

    count, gpus = len(ordered.block_ptr) - 1, len(schedule.topology.nodes)
    channels = [_entries(one, gpus, ordered.blocks) for one in (built.memory, built.port)]
    posting = execution.groups * execution.width
    is_port = (np.arange(count) % ordered.blocks >= posting) & (np.diff(channels[0][0]) + np.diff(channels[0][2]) == 0)
    announced, awaited = (_chosen(channels[0][k : k + 2], channels[1][k : k + 2], is_port) for k in (0, 2))
    groups, group = list(dict.fromkeys(built.members.values())), np.full(len(built.messages), -1)
    for m, ranks in built.members.items():
        group[m] = groups.index(ranks)
    actions = ordered.actions
    section = np.where(actions.once > 0, 2, np.where(ordered.late, 1, 0)) if unit_bytes else np.zeros_like(actions.once)
    hints, texts = _hints(schedule, built, execution.width, len(WORDS))
    plan = PlanActions(
        actions, built.ranges, built.ids, ordered.block_ptr, ordered.acquire_ptr, ordered.acquire,
        ordered.release_ptr, ordered.release, *announced, *awaited, is_port, group, section, hints, unit_bytes,
        packets, units.first_ptr, units.first, execution.slots, ordered.blocks, execution.packets,
    )  # fmt: skip
    most = _most(plan)
    sizes = np.array(
        [len(built.memory.ends), len(built.port.ends), 4 * gpus, 4 * gpus, 4 * len(groups)], dtype=np.int64
    )
    text, rows, ptr, member = write_operations(plan, words_of([*WORDS, *texts]), sizes, most)
    kept = np.flatnonzero(rows[:, 2])
    tables = (5 * kept[:, None] + np.arange(5)).reshape(-1)  # those of the others are empty
    begin, end, operations = rows[kept].T
    table_ptr = np.append(ptr[tables], ptr[-1])
    return WrittenBlocks(text, kept // ordered.blocks, begin, end, operations, table_ptr, member, groups)


def _most(plan: Any) -> int:
    """The most channels and slots that any threadblock uses."""
    actions, ranges = plan.actions, plan.ranges
    each = pointers(2 + ranges.added_high - ranges.added_low)
    used = each[actions.range_high] - each[actions.range_low] + actions.channel_high - actions.channel_low
    total = np.diff(pointers(used)[plan.block_ptr])
    total += np.diff(plan.announced_ptr) + np.diff(plan.awaited_ptr)
    return int(total.max(initial=0)) + 8


def _entries(channels: Channels, gpus: int, blocks: int) -> tuple[I64, I64, I64, I64]:
    """Return the channels on which each threadblock receives, and those on which it sends: pointers and numbers."""
    direction = np.flatnonzero(channels.used)
    number, lower = direction // 2, direction % 2 == 0
    ends = channels.ends[number]
    places = ends[:, 0] * blocks + ends[:, 1], ends[:, 2] * blocks + ends[:, 3]
    found = []
    for place in (np.where(lower, places[1], places[0]), np.where(lower, places[0], places[1])):
        found += [pointers(np.bincount(place, minlength=gpus * blocks)), number[np.argsort(place, kind="stable")]]
    return found[0], found[1], found[2], found[3]


def _chosen(memory: Sequence[I64], port: Sequence[I64], is_port: NDArray[np.bool_]) -> tuple[I64, I64]:
    """Of two lists for each threadblock, the second one where it is for ports."""
    sizes = [np.where(is_port == k, np.diff(ptr), 0) for k, (ptr, _) in enumerate((memory, port))]
    kept = [number[np.repeat(is_port == k, np.diff(ptr))] for k, (ptr, number) in enumerate((memory, port))]
    of = np.concatenate([np.repeat(np.arange(len(is_port)), size) for size in sizes])
    return pointers(sizes[0] + sizes[1]), np.concatenate(kept)[np.argsort(of, kind="stable")]


def _hints(schedule: Schedule, built: Built, width: int, first: int) -> tuple["Hints", list[str]]:
    """The start, rate and path of each message as its threadblocks have them, and further words, from `first` on."""
    from flowccl.export.formats.plan_text_kernels import Hints

    is_nic, times = built.is_proxied, built.times
    rates, rate = np.unique(np.where(is_nic, built.rate_GBps, built.rate_GBps / width), return_inverse=True)
    paths, path = _paths(schedule, built)
    start, texts = np.where(is_nic, times.posted, times.start), [f"{one:.12g}" for one in rates.tolist()]
    return Hints(start, first + rate.reshape(-1), first + len(texts) + path), [*texts, *paths]


def _paths(schedule: Schedule, built: Built) -> tuple[list[str], I64]:
    """The links of each message, where there are several routes between its GPUs; no runtime reads them."""
    near, shape, nodes = neighbours(schedule.topology), schedule.shape, len(schedule.topology.nodes)
    several = np.flatnonzero(np.diff(near.pair_ptr) > 1)
    routes, number = np.unique(schedule.route[built.messages.first], return_inverse=True)
    pair = shape.root_node[shape.root_ptr[routes]].astype(np.int64) * nodes + shape.end_node[shape.end_ptr[routes]]
    named = np.isin(pair, near.src[several].astype(np.int64) * nodes + near.end[several])
    texts = [f',"links":{list(schedule.routes.links(r))}' if n else "" for r, n in zip(routes, named, strict=True)]
    return texts, number.reshape(-1)
