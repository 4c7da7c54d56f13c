"""Trees and paths at the rates of a linear program, then whole chunks, then list scheduling."""

from flowccl.methods.rates.method import packed_trees

__all__ = ["packed_trees"]
