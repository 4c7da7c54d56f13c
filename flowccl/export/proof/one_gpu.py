"""One GPU that stands for all others, in the event simulation of a symmetric program.

All GPUs do the same at the same times. So what GPU 0 waits for is the image of what it sends itself, and the links of
an orbit are used like one link.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.export.proof.steps import StepArrays

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OneGpu:
    """`sent` is the connection of GPU 0 whose image is one on which it waits; `orbit` is that of each link."""

    sent: Mapping[Hashable, Hashable]
    orbit: I64

    def steps(self, table: StepArrays) -> StepArrays:
        """Return the steps of GPU 0, which wait for its own signals."""
        number = {key: k for k, key in enumerate(table.connections)}
        image = np.array([number.get(self.sent.get(key, key), k) for key, k in number.items()], dtype=np.int64)
        return replace(table, pop=image[table.pop] if len(image) else table.pop)

    def receivers(self, table: StepArrays) -> I64:
        """Return the GPU to which each connection leads."""
        return np.array([key[2] for key in table.connections], dtype=np.int64)  # type: ignore[index]
