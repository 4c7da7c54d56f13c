"""Which few plans cover all sizes, and the sizes at which one plan takes over from another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flowccl.runtimes.profiles import served_bytes

Times = Mapping[int, int]
"""Picoseconds by size; sizes at which a plan was not timed are absent."""

_NEVER = 10.0  # the ratio that counts for a size at which no chosen plan was timed
_RELATIVE_STEP = 128  # crossovers are found to within 1/128 of their size: far below the differences of predictions


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring probed sizes with the same fastest plan: positions `first` to `last`; plan None is the library."""

    first: int
    last: int
    plan: int | None


def cover(plans: Sequence[Times], sizes: Sequence[int], tolerance: float, most: int) -> list[int]:
    """Return few plans of which, at every size, one is within `tolerance` of the fastest of all plans.

    Plans are added one by one, each time the one that lowers the total of the ratios to the fastest plan most; equal
    ones in their order. At most `most` plans are returned.
    """
    best = {size: min(times[size] for times in plans if size in times) for size in sizes}
    ratio = dict.fromkeys(sizes, _NEVER)
    chosen: list[int] = []

    def with_plan(n: int) -> dict[int, float]:
        return {s: min(r, plans[n][s] / best[s]) if s in plans[n] else r for s, r in ratio.items()}

    while len(chosen) < most and max(ratio.values()) > 1 + tolerance:
        n = min((n for n in range(len(plans)) if n not in chosen), key=lambda n: (sum(with_plan(n).values()), n))
        ratio = with_plan(n)
        chosen.append(n)
    return sorted(chosen)


def segments(
    plans: Mapping[int, Times], library: Mapping[int, int | None], sizes: Sequence[int], tolerance: float
) -> list[Segment]:
    """Return the plan of every probed size as segments; the previous plan stays where it is within the tolerance.

    The library serves sizes at which it is predicted to be faster than every plan.
    """
    found: list[Segment] = []
    for at, size in enumerate(sizes):
        times = {n: plans[n][size] for n in plans if size in plans[n]}
        best = min(times, key=lambda n: (times[n], n))
        before = found[-1].plan if found else None
        if before in times and times[before] <= times[best] * (1 + tolerance):
            best = before
        own = library[size]
        plan = None if own is not None and own < times[best] else best
        if found and found[-1].plan == plan:
            found[-1] = Segment(found[-1].first, at, plan)
        else:
            found.append(Segment(at, at, plan))
    return found


def crossover(before: Callable[[int], int], after: Callable[[int], int], low: int, high: int, unit: int) -> int:
    """Return the size from which `after` is at least as fast as `before`, by bisection between two probed sizes.

    At `low`, `before` is chosen, and at `high`, `after`; the result is a multiple of `unit` above `low`.
    """
    a, b = low // unit, -(-high // unit)
    while b - a > max(1, b // _RELATIVE_STEP):
        middle = (a + b) // 2
        if after(middle * unit) <= before(middle * unit):
            b = middle
        else:
            a = middle
    return b * unit


def probes(low: int, high: int, gpus: int, factor: int = 2) -> tuple[int, ...]:
    """Return the probed sizes: `low`, each times `factor` the one before, and `high`; all as plans serve them."""
    sizes = []
    size = low
    while size < high:
        sizes.append(served_bytes(size, gpus))
        size *= factor
    return tuple(dict.fromkeys([*sizes, served_bytes(high, gpus)]))
