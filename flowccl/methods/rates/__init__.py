"""Trees and paths at the rates of a linear program, then whole chunks, then list scheduling."""

from flowccl.methods.rates.method import packed_trees
from flowccl.methods.rates.paths import packed_paths

__all__ = ["packed_paths", "packed_trees"]
