"""Trees along which chunks spread, one per chunk, as arrays."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ChunkTrees(NamedTuple):
    """A tree per chunk: hops `ptr[c]:ptr[c + 1]`, each a link and the hop that feeds it (-1 at the source)."""

    ptr: NDArray[np.int64]
    link: NDArray[np.int32]
    parent: NDArray[np.int32]
