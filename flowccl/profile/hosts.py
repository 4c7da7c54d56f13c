"""Find which ranks are on the same host, and format ranks and hosts for messages."""

from collections.abc import Sequence
from itertools import pairwise

from flowccl.profile.fit import LinkFit
from flowccl.profile.probes import Ends, ranks_of


def find_hosts(names: Sequence[str], fits: dict[Ends, LinkFit]) -> tuple[str, ...]:
    """Host of each rank: the reported host names, or groups of ranks that are clearly nearer to each other."""
    if any(names):
        return tuple(names)
    ranks = len(names)
    for size_bytes in (0, 1_000_000):
        far = {link: fit.seconds(1, size_bytes) for link, fit in fits.items()}
        value = {(a, b): max(far[a, b], far[b, a]) for a, b in fits if a < b and (b, a) in fits}
        if len(value) < ranks * (ranks - 1) // 2:
            return ("",) * ranks
        ordered = sorted(value.values())
        gaps = [(high / max(low, 1e-9), low) for low, high in pairwise(ordered)]
        for ratio, low in sorted(gaps, reverse=True):
            groups = _complete_groups(ranks, {pair for pair, d in value.items() if d <= low})
            if ratio > 1.5 and groups is not None:
                return tuple(f"host{group}" for group in groups)
    return ("",) * ranks


def _complete_groups(ranks: int, near: set[Ends]) -> list[int] | None:
    """Group of each rank if the pairs in `near` form disjoint cliques of at least two ranks; otherwise None."""
    group = list(range(ranks))
    for a, b in sorted(near):
        old, new = max(group[a], group[b]), min(group[a], group[b])
        group = [new if g == old else g for g in group]
    sizes = [group.count(g) for g in sorted(set(group))]
    if sum(size * (size - 1) // 2 for size in sizes) != len(near) or min(sizes) < 2:
        return None
    order = {g: number for number, g in enumerate(dict.fromkeys(group))}
    return [order[g] for g in group]


def format_hosts(hosts: Sequence[str]) -> str:
    """Each host with its ranks."""
    return ", ".join(f"{name}: {format_ranks(ranks)}" for name, ranks in ranks_of(hosts).items())


def format_ranks(ranks: list[int]) -> str:
    """Ranks as a short list, or their number if there are many."""
    return "gpu" + ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} gpus"
