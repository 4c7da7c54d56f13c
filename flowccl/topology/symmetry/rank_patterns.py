"""Candidate permutations of the GPUs, from patterns in the rank order.

A rank is read as a number in a mixed radix: rank = (outer, digit, inner) with `inner` < `inside` and digit <
`outside / inside`. Examples of digits are the host, the index of a GPU in its host, a coordinate of a torus, a bit of
a hypercube, and a pod of a fat tree. The candidates rotate one digit by one, reverse it, or exchange two of its values,
in all blocks or only in the first block, or exchange two digits. `symmetry` checks every candidate.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]

_MAX_ALL_DIVISORS = 4096  # GPUs; on larger machines only block sizes that the links suggest are tried
_MAX_SINGLE = 64  # GPUs up to which exchanges of single GPUs are tried
_MAX_TRIES = 4096  # exchanges of two values of a digit


def gpu_permutations(topology: Topology, accepts: Callable[[I32], bool]) -> Iterator[I32]:
    """Yield candidates; `accepts` tells whether a permutation is a symmetry, on which later candidates depend."""
    count = topology.num_gpus
    sizes = block_sizes(topology)
    for inside in sizes:
        for outside in sizes:
            if outside <= inside or outside % inside:
                continue
            yield from _digit(count, inside, outside)
            yield from _two_digits(count, inside, outside, sizes)
    for inside, outside in _class_digits(topology, sizes):
        yield from _classes(count, inside, outside, accepts)


def block_sizes(topology: Topology) -> list[int]:
    """Return the block sizes to try: divisors of the number of GPUs."""
    count = topology.num_gpus
    divisors = [size for size in range(1, count + 1) if count % size == 0]
    if count <= _MAX_ALL_DIVISORS:
        return divisors
    away = np.abs(topology.link_src.astype(np.int64) - topology.link_dst)
    direct = (topology.link_src < count) & (topology.link_dst < count)
    near = set(np.unique(away[direct]).tolist()[:64])
    near |= {1, count, _per_host(topology)}
    return [size for size in divisors if size in near]


def _per_host(topology: Topology) -> int:
    """Return the number of GPUs of the first host; 1 if there are no hosts."""
    first = topology.nodes[0].host
    return max(1, sum(bool(first) and node.host == first for node in topology.nodes[: topology.num_gpus]))


def _digit(count: int, inside: int, outside: int) -> Iterator[I32]:
    """Yield permutations of one digit, in all blocks or in the first block only."""
    values = outside // inside
    digit = np.arange(values)
    moves = {tuple(np.roll(digit, 1)), tuple(-digit % values), tuple(digit[::-1])}
    moves.add(tuple(_exchanged(values, 0, 1)))
    for move in sorted(moves):
        new = _moved(count, inside, outside, np.array(move))
        yield new
        if outside < count:
            only = np.arange(count, dtype=np.int32)
            only[:outside] = new[:outside]
            yield only


def digit_rotation(count: int, inside: int, outside: int) -> I32:
    """Return the rotation by one of the digit between these block sizes, in all blocks."""
    return _moved(count, inside, outside, (np.arange(outside // inside) + 1) % (outside // inside))


def _moved(count: int, inside: int, outside: int, move: NDArray[np.int64]) -> I32:
    rank = np.arange(count)
    digit = rank % outside // inside
    return (rank + (move[digit] - digit) * inside).astype(np.int32)


def _two_digits(count: int, inside: int, outside: int, sizes: list[int]) -> Iterator[I32]:
    """Yield the exchange of two adjacent digits with equally many values."""
    values = outside // inside
    beyond = outside * values
    if values == 1 or beyond not in sizes:
        return
    rank = np.arange(count)
    low, high = rank % outside // inside, rank % beyond // outside
    yield (rank + (high - low) * inside + (low - high) * outside).astype(np.int32)


def _class_digits(topology: Topology, sizes: list[int]) -> list[tuple[int, int]]:
    """Return digits whose values may form classes: hosts, indices in the host, and single GPUs of small machines."""
    count, per_host = topology.num_gpus, _per_host(topology)
    digits = []
    if 1 < per_host < count and count % per_host == 0:
        digits += [(per_host, count)]
        digits += [(size, per_host) for size in sizes if size < per_host and per_host % size == 0]
    if count <= _MAX_SINGLE:
        digits.append((1, count))
    return digits


def _classes(count: int, inside: int, outside: int, accepts: Callable[[I32], bool]) -> Iterator[I32]:
    """Yield accepted exchanges of two values of a digit: each value with the first of a class, if one is accepted."""
    values, tries = outside // inside, 0
    digit = np.arange(values)
    if all(accepts(_moved(count, inside, outside, move)) for move in (np.roll(digit, 1), _exchanged(values, 0, 1))):
        return  # these two generate all exchanges
    first: list[int] = []
    for value in range(values):
        for other in reversed(first):
            tries += 1
            guess = _moved(count, inside, outside, _exchanged(values, value, other))
            if accepts(guess):
                yield guess
                break
        else:
            first.append(value)
        if tries > _MAX_TRIES:
            return


def _exchanged(values: int, a: int, b: int) -> NDArray[np.int64]:
    move = np.arange(values)
    move[[a, b]] = b, a
    return move
