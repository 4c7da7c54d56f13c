"""Trees to several roots, and an exchange between the roots: allreduce for machines of direct links.

A chunk that is reduced to one root and copied from there takes twice the radius of the machine: 12 hops on a 4x4x4
torus. With 2^k roots that form a cube of links, every GPU sends to the nearest root, the roots exchange what they have
by recursive doubling along the k dimensions of the cube, and copy the result back: 12 - k hops. The exchange takes few
more transfers: with 8 roots 136 instead of 126 per chunk. One root is a tree each way; all GPUs as roots are
recursive doubling.

1. Routing. The longest path of a chunk is divided into stages of one hop. Chunk by chunk, the cube and the trees are
   chosen that keep the links balanced in every stage: a link with many transfers in the first stages delays all that
   follows, even if it has little to carry in total. Trees only use shortest paths. A few sweeps over all chunks.
2. Scheduling. List scheduling, the longest tail first, then with noise for every chunk. Two roots exchange at about the
   same time: both must send before they receive.
"""

from flowccl.methods.tree_exchange.method import tree_exchange

__all__ = ["tree_exchange"]
