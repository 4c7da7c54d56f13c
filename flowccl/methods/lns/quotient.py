"""The quotient of a problem by a symmetry group: one chunk per orbit of chunks, one timetable row per orbit of links.

The elements of a free group map chunks to chunks and links to links. A transfer that is planned for one chunk
represents its images, one on every link of the orbit. A plan is valid if no two transfers occupy the same orbit at the
same time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.permutations import Symmetry

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Quotient:
    """A group, the images of the chunks (a row per element), and the first chunk of each orbit."""

    group: Symmetry
    image: I32
    chunks: NDArray[np.int64]

    @classmethod
    def of(cls, group: Symmetry, demand: Demand) -> "Quotient | None":
        """The quotient; None if the group does not map the demand to itself."""
        keys = [_keys(demand, nodes) for nodes in group.nodes]
        order = [np.argsort(key, kind="stable") for key in keys]  # equal chunks keep their order
        image = np.empty((len(group), len(demand)), dtype=np.int32)
        for row, key, at in zip(image, keys, order, strict=True):
            if not np.array_equal(key[at], keys[0][order[0]]):
                return None
            row[at] = order[0]
        return cls(group, image, np.flatnonzero(image.min(axis=0) == np.arange(len(demand))))

    def expanded(
        self, demand: Demand, routes: Routes, chunk: NDArray[np.int64], route: I32, start_ps: NDArray[np.int64]
    ) -> Schedule:
        """The images of the transfers under all elements, as a schedule of the whole demand."""
        used, place = np.unique(route, return_inverse=True)
        links = [np.array(routes.links(int(r)), dtype=np.int32) for r in used]
        lists = [tuple(row[one].tolist()) for row in self.group.links for one in links]
        shift = np.arange(len(self.group), dtype=np.int64)[:, None] * len(used)
        every = (shift + place.reshape(-1)[None, :]).astype(np.int32).ravel()
        moved = self.image[:, chunk].ravel()
        starts = np.broadcast_to(start_ps, (len(self.group), len(start_ps))).ravel()
        flags = np.zeros(len(moved), dtype=np.bool_)
        return Schedule(
            self.group.topology, demand, Routes.from_lists(lists), moved, every, starts.copy(), flags, "lns"
        )


def _keys(demand: Demand, nodes: I32) -> U64:
    """A hash of each chunk's size, release time, source and destinations, after the nodes are permuted."""
    random = np.random.default_rng(3).integers(1, 2**63, (2, len(nodes)), dtype=np.uint64)
    ends = random[0][nodes[demand.destination_rank]]
    wanted = np.add.reduceat(ends, demand.destination_ptr[:-1].astype(np.int64))
    size = demand.chunk_bytes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    late = demand.available_ps.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray(wanted ^ random[1][nodes[demand.source]] ^ size ^ late, dtype=np.uint64)
