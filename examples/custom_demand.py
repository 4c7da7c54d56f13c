"""Synthesize a schedule for a data movement that is not one of the named collectives.

Three movements share a machine of four GPUs: rank 0 sends 1 MB to all others, rank 1 gets the reduction of 1 MB of
ranks 1 to 3, and rank 2 sends 1 MB to rank 3 as soon as that data is ready.
"""

from dataclasses import replace

import numpy as np

from flowccl import Chunk, Demand, machine, synthesize, verify

MB = 1_000_000


def demand() -> Demand:
    chunks = [
        *(Chunk(bytes=MB // 4, sources=(0,), destinations=(1, 2, 3)) for _ in range(4)),
        *(Chunk(bytes=MB // 2, sources=(1, 2, 3), destinations=(1,)) for _ in range(2)),
        Chunk(bytes=MB, sources=(2,), destinations=(3,)),
    ]
    made = Demand.from_chunks("custom", 4, chunks)
    ready_ps = np.where(made.source_chunk == len(chunks) - 1, 20_000_000, 0)  # the last chunk is ready after 20 us
    return replace(made, ready_ps=ready_ps)


def main() -> None:
    result = synthesize(machine("torus:2x2"), demand(), method="greedy", steps=20)
    print(f"{result.schedule.finish_us:.2f} us, lower bound {result.bound.us:.2f} us, gap {result.gap:.1%}")
    assert verify(result.schedule) == []


if __name__ == "__main__":
    main()
