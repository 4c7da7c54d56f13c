"""Hierarchical collectives: trees from group to group on every level of the machine, chunks pipelined through all.

BlueConnect and NCCL's PXN are special cases, see docs/methods/hierarchical.md.
"""

from flowccl.methods.hierarchical.method import hierarchical, hierarchical_halves

__all__ = ["hierarchical", "hierarchical_halves"]
