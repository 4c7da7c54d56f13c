"""Chunks of data, and demands, which are tables of chunks."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.share import Share, check_tenant_chunks, outsiders
from flowccl.errors import DemandError
from flowccl.topology.neighbours import reach
from flowccl.topology.topology import Topology
from flowccl.topology.variants import without

COLLECTIVES = (
    "allgather",
    "alltoall",
    "alltoallv",
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "reduce_scatter",
    "allreduce",
    "custom",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The unit of data that a transfer moves; sources and destinations are ranks of GPUs.

    With one source, every destination must get the chunk. With several sources, each source has a contribution, and
    every destination must get the reduction of all contributions, each included once.
    """

    bytes: int
    sources: tuple[int, ...]
    destinations: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Demand:
    """All chunks that must move among `num_gpus` GPUs, as arrays.

    `size_bytes` is the size of the collective as defined by nccl-tests. Chunk c has sources
    `source_rank[source_ptr[c]:source_ptr[c + 1]]`; destinations are stored the same way. A single source is never a
    destination. The chunks of a block of data are consecutive, `pieces` chunks per block.

    `group` are the ranks that take part; None means all. `relays` are the ranks outside the group that may forward
    chunks; None means all. `ready_ps` is the time at which the data of each entry of `source_rank` is available; None
    means at time 0. `tenants` are the owners of the chunks, if several tenants share the demand.
    """

    collective: str
    num_gpus: int
    size_bytes: int
    chunk_bytes: NDArray[np.int64]
    source_ptr: NDArray[np.int64]
    source_rank: NDArray[np.int32]
    destination_ptr: NDArray[np.int64]
    destination_rank: NDArray[np.int32]
    pieces: int = 1
    group: tuple[int, ...] | None = None
    relays: tuple[int, ...] | None = None
    ready_ps: NDArray[np.int64] | None = None
    tenants: tuple[Share, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in _COLUMNS.items():
            column = np.ascontiguousarray(getattr(self, name), dtype=kind)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        _check(self)
        check_tenant_chunks(self.tenants, len(self))
        if self.group is not None or self.relays is not None:
            _check_group(self)
        if self.ready_ps is not None:
            object.__setattr__(self, "ready_ps", _checked_ready(self))

    @classmethod
    def from_chunks(
        cls, collective: str, num_gpus: int, chunks: Iterable[Chunk], size_bytes: int | None = None, pieces: int = 1
    ) -> "Demand":
        """Return a demand from Chunk objects; the default size is the most bytes that any GPU sends or receives."""
        chunks = list(chunks)
        sources = [chunk.sources for chunk in chunks]
        wanted = [
            tuple(d for d in chunk.destinations if chunk.sources != (d,))
            if len(chunk.sources) == 1
            else chunk.destinations
            for chunk in chunks
        ]
        demand = cls(
            collective,
            num_gpus,
            1 if size_bytes is None else size_bytes,
            np.array([chunk.bytes for chunk in chunks], dtype=np.int64),
            _pointer(sources),
            np.array([rank for ranks in sources for rank in ranks], dtype=np.int32),
            _pointer(wanted),
            np.array([rank for ranks in wanted for rank in ranks], dtype=np.int32),
            pieces,
        )
        if size_bytes is None:
            object.__setattr__(demand, "size_bytes", demand.heaviest_bytes)
        return demand

    def __len__(self) -> int:
        return len(self.chunk_bytes)

    def __repr__(self) -> str:
        return f"Demand({self.collective!r}, {self.num_gpus} gpus, {self.size_bytes} bytes, {len(self)} chunks)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Demand):
            return NotImplemented
        plain = all(getattr(self, name) == getattr(other, name) for name in _PLAIN)
        if not plain or not np.array_equal(self.available_ps, other.available_ps):
            return False
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS)

    def __hash__(self) -> int:
        return hash((self.collective, self.num_gpus, self.size_bytes, len(self)))

    def sources(self, chunk: int) -> NDArray[np.int32]:
        """Return the ranks that have the chunk, or a contribution to it, at the start."""
        return self.source_rank[self.source_ptr[chunk] : self.source_ptr[chunk + 1]]

    def destinations(self, chunk: int) -> NDArray[np.int32]:
        """Return the ranks that must get the chunk."""
        return self.destination_rank[self.destination_ptr[chunk] : self.destination_ptr[chunk + 1]]

    def chunk(self, chunk: int) -> Chunk:
        """Return one chunk as an object."""
        return Chunk(
            bytes=int(self.chunk_bytes[chunk]),
            sources=tuple(self.sources(chunk).tolist()),
            destinations=tuple(self.destinations(chunk).tolist()),
        )

    @property
    def num_ranks(self) -> int:
        """Number of GPUs that take part; the number of ranks in nccl-tests."""
        return self.num_gpus if self.group is None else len(self.group)

    @cached_property
    def available_ps(self) -> NDArray[np.int64]:
        """Time at which the data of each entry of `source_rank` is available."""
        if self.ready_ps is not None:
            return self.ready_ps
        zeros = np.zeros(len(self.source_rank), dtype=np.int64)
        zeros.setflags(write=False)
        return zeros

    @cached_property
    def forbidden(self) -> tuple[int, ...]:
        """Ranks that may not forward chunks."""
        return outsiders(self.num_gpus, self.group, self.relays)

    @cached_property
    def reduces(self) -> bool:
        """Whether any chunk is a reduction of several contributions."""
        return bool(np.any(np.diff(self.source_ptr) > 1))

    @property
    def is_unicast(self) -> bool:
        """Whether every chunk has exactly one destination."""
        return len(self.destination_rank) == len(self)

    @cached_property
    def source(self) -> NDArray[np.int32]:
        """The single source of each chunk; only for demands that do not reduce."""
        if self.reduces:
            raise DemandError(f"{self.collective}: a chunk has several sources")
        return self.source_rank

    @cached_property
    def destination_chunk(self) -> NDArray[np.int32]:
        """The chunk of each entry of `destination_rank`."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.destination_ptr))

    @cached_property
    def source_chunk(self) -> NDArray[np.int32]:
        """The chunk of each entry of `source_rank`."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.source_ptr))

    @cached_property
    def heaviest_bytes(self) -> int:
        """The most bytes that any GPU must send or receive."""
        out = np.bincount(self.source_rank, self.chunk_bytes[self.source_chunk], self.num_gpus)
        into = np.bincount(self.destination_rank, self.chunk_bytes[self.destination_chunk], self.num_gpus)
        return int(max(out.max(), into.max(), 1))

    @cached_property
    def backward(self) -> "Demand":
        """The time-reversed demand: the destination of each chunk sends it to all other sources.

        Every chunk must have one destination.
        """
        if len(self.destination_rank) != len(self):
            raise DemandError(f"{self.collective}: a reduction with several destinations cannot be reversed")
        other = self.source_rank != self.destination_rank[self.source_chunk]
        table = _table(len(self), self.source_chunk[other], self.source_rank[other])
        return self._with_ranks(self.destination_ptr, self.destination_rank, *table)

    @cached_property
    def per_destination(self) -> "Demand":
        """The demand in which every destination reduces all contributions itself: each block once per destination.

        This moves more bytes but needs no separate distribution phase, so it is fastest for small sizes. The copy of
        block b for its k-th destination is block b * destinations + k, with the data of block b at every source.
        """
        wants = int(np.diff(self.destination_ptr)[0])
        if np.any(np.diff(self.destination_ptr) != wants):
            raise DemandError(
                f"{self.collective}: all chunks must have the same number of destinations for separate reductions"
            )
        blocks = np.arange(len(self)).reshape(-1, self.pieces)
        chunk = np.repeat(blocks, wants, axis=0).reshape(-1)
        wanted = self.destination_rank.reshape(-1, self.pieces, wants).transpose(0, 2, 1).reshape(-1)
        count = np.diff(self.source_ptr)[chunk]
        ptr = pointers(count)
        entry = np.repeat(self.source_ptr[:-1][chunk] - ptr[:-1], count) + np.arange(ptr[-1])
        return replace(
            self,
            chunk_bytes=self.chunk_bytes[chunk],
            source_ptr=ptr,
            source_rank=self.source_rank[entry],
            destination_ptr=np.arange(len(chunk) + 1),
            destination_rank=wanted,
            ready_ps=None if self.ready_ps is None else self.ready_ps[entry],
            tenants=(),
        )

    @cached_property
    def halves(self) -> tuple[tuple["Demand", NDArray[np.int64]], tuple["Demand", NDArray[np.int64]]]:
        """`halves_at` with owners taken cyclically from the destinations: in allreduce, rank b reduces block b."""
        wants = np.diff(self.destination_ptr)
        turn = np.arange(len(self)) // self.pieces % wants
        return self.halves_at(self.destination_rank[self.destination_ptr[:-1] + turn])

    def halves_at(
        self, owner: NDArray[np.int32]
    ) -> tuple[tuple["Demand", NDArray[np.int64]], tuple["Demand", NDArray[np.int64]]]:
        """Return a reduction of each chunk at its owner and a distribution from there, each with its chunk indices.

        This works for allreduce and any custom demand. A chunk with one source is owned by it and is not reduced.
        """
        single = np.diff(self.source_ptr) == 1
        owner = np.where(single, self.source_rank[self.source_ptr[:-1]], owner).astype(np.int32)
        reduced = ~single[self.source_chunk]
        leaves = self.destination_rank != owner[self.destination_chunk]
        first = np.flatnonzero(~single)
        second = np.unique(self.destination_chunk[leaves]).astype(np.int64)
        inputs = _table(len(first), np.searchsorted(first, self.source_chunk[reduced]), self.source_rank[reduced])
        copies = _table(
            len(second), np.searchsorted(second, self.destination_chunk[leaves]), self.destination_rank[leaves]
        )
        reduction = self._with_ranks(*inputs, np.arange(len(first) + 1), owner[first], first)
        if self.ready_ps is not None:
            reduction = replace(reduction, ready_ps=self.ready_ps[reduced])
        distribution = self._with_ranks(np.arange(len(second) + 1), owner[second], *copies, second)
        return (reduction, first), (distribution, second)

    def _with_ranks(
        self,
        source_ptr: NDArray[np.int64],
        source_rank: NDArray[np.int32],
        destination_ptr: NDArray[np.int64],
        destination_rank: NDArray[np.int32],
        chunks: NDArray[np.int64] | None = None,
    ) -> "Demand":
        """Return all chunks, or some of them, with other sources and destinations."""
        every = chunks is None or len(chunks) == len(self)
        return replace(
            self,
            chunk_bytes=self.chunk_bytes if every else self.chunk_bytes[chunks],
            source_ptr=source_ptr,
            source_rank=source_rank,
            destination_ptr=destination_ptr,
            destination_rank=destination_rank,
            pieces=self.pieces if every else 1,
            ready_ps=None,
            tenants=(),
        )

    def check_fits(self, topology: Topology) -> None:
        """Raise DemandError if the machine has too few GPUs or no path from a source to a destination."""
        if self.num_gpus > topology.num_gpus:
            raise DemandError(
                f"the demand is for {self.num_gpus} gpus, the machine {topology.name} has {topology.num_gpus}"
            )
        nodes = reach(without(topology, self.forbidden)[0] if self.forbidden else topology)
        if nodes is None:
            return
        for rank in range(self.num_gpus):
            chunks = self.source_chunk[self.source_rank == rank]
            wanted = np.unique(self.destination_rank[np.isin(self.destination_chunk, chunks)])
            lost = wanted[~nodes[rank, wanted]]
            if len(lost):
                names = ", ".join(topology.nodes[node].name for node in lost[:5]) + (" ..." if len(lost) > 5 else "")
                raise DemandError(
                    f"{topology.nodes[rank].name} cannot reach {names} on {topology.name}; add links or drop these gpus"
                )


_PLAIN = ("collective", "num_gpus", "size_bytes", "pieces", "group", "relays", "tenants")
_COLUMNS = {
    "chunk_bytes": np.int64,
    "source_ptr": np.int64,
    "source_rank": np.int32,
    "destination_ptr": np.int64,
    "destination_rank": np.int32,
}


def _pointer(groups: list[tuple[int, ...]]) -> NDArray[np.int64]:
    return pointers([len(group) for group in groups])


def _table(
    count: int, chunk: NDArray[np.integer], rank: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    return pointers(np.bincount(chunk, minlength=count)), rank


def _check(demand: Demand) -> None:
    count = len(demand.chunk_bytes)
    if count == 0:
        raise DemandError(f"{demand.collective}: has no chunks; give at least one chunk")
    if demand.collective not in COLLECTIVES:
        raise DemandError(f"unknown collective {demand.collective!r}; known collectives are {', '.join(COLLECTIVES)}")
    if demand.size_bytes < 1:
        raise DemandError(f"{demand.collective}: size_bytes must be at least 1, got {demand.size_bytes}")
    if demand.pieces < 1 or count % demand.pieces:
        raise DemandError(f"{demand.collective}: {count} chunks cannot form blocks of {demand.pieces} chunks each")
    if demand.chunk_bytes.min() < 1:
        chunk = int(np.argmin(demand.chunk_bytes))
        raise DemandError(f"chunk {chunk}: bytes must be at least 1, got {demand.chunk_bytes[chunk]}")
    for what, pointer, ranks in (
        ("sources", demand.source_ptr, demand.source_rank),
        ("destinations", demand.destination_ptr, demand.destination_rank),
    ):
        if len(pointer) != count + 1 or pointer[0] != 0 or pointer[-1] != len(ranks):
            raise DemandError(f"{what}: the pointer must run from 0 to {len(ranks)} in {count + 1} entries")
        if np.any(np.diff(pointer) < 1):
            raise DemandError(f"chunk {int(np.argmin(np.diff(pointer)))}: has no {what}; give at least one")
        if len(ranks) and not (ranks.min() >= 0 and ranks.max() < demand.num_gpus):
            bad = int(ranks[(ranks < 0) | (ranks >= demand.num_gpus)][0])
            raise DemandError(f"{what}: rank {bad} is not a gpu; ranks are 0 to {demand.num_gpus - 1}")
        keys = np.repeat(np.arange(count), np.diff(pointer)) * demand.num_gpus + ranks
        keys.sort()
        if np.any(keys[1:] == keys[:-1]):
            raise DemandError(f"{what}: a chunk names the same rank twice")
    single = np.diff(demand.source_ptr)[demand.destination_chunk] == 1
    own = demand.source_rank[demand.source_ptr[:-1][demand.destination_chunk]] == demand.destination_rank
    if np.any(single & own):
        chunk = int(demand.destination_chunk[np.argmax(single & own)])
        raise DemandError(f"chunk {chunk}: its only source is also a destination, but already has the chunk")


def _check_group(demand: Demand) -> None:
    """Raise DemandError unless group and relays are disjoint, and all sources and destinations are in the group."""
    if demand.group is None:
        raise DemandError("relays: require a group; without a group, every gpu takes part")
    for what, ranks in (("group", demand.group), ("relays", demand.relays or ())):
        for rank in ranks:
            if not 0 <= rank < demand.num_gpus:
                raise DemandError(f"{what}: rank {rank} is not a gpu; ranks are 0 to {demand.num_gpus - 1}")
        twice = [rank for rank in ranks if ranks.count(rank) > 1] if len(set(ranks)) < len(ranks) else []
        if twice:
            raise DemandError(f"{what}: rank {twice[0]} is named twice")
    both = sorted(set(demand.group) & set(demand.relays or ()))
    if both:
        raise DemandError(f"relays: rank {both[0]} is in the group, so it may forward chunks anyway")
    outside = np.setdiff1d(np.concatenate((demand.source_rank, demand.destination_rank)), demand.group)
    if len(outside):
        raise DemandError(f"group: rank {outside[0]} is a source or a destination, but is not in the group")


def _checked_ready(demand: Demand) -> NDArray[np.int64] | None:
    """Return the times as a read-only array, or None if all are 0."""
    ready = np.ascontiguousarray(demand.ready_ps, dtype=np.int64)
    if ready.shape != demand.source_rank.shape:
        raise DemandError(f"ready_ps: has {len(ready)} entries, there are {len(demand.source_rank)} sources")
    if len(ready) and not (ready.min() >= 0 and ready.max() <= 2**60):
        bad = int(ready[(ready < 0) | (ready > 2**60)][0])
        raise DemandError(f"ready_ps: must be 0 to 2^60, got {bad}")
    ready.setflags(write=False)
    return ready if ready.any() else None
