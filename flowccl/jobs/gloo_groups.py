"""Which process group a thread of gloo serves: its events name no group, but every group has threads of its own."""

from collections.abc import Mapping, Sequence

from flowccl.jobs.calls import Group

_NEAR = 3  # threads of one group are made one after the other, so their numbers are at most this far from each other


def groups_of_threads(
    threads: Sequence[int], sizes: Mapping[int, set[int]], groups: Sequence[Group]
) -> dict[int, Group]:
    """Return the group of each thread; threads whose group cannot be told are left out.

    `sizes` are the group sizes that the calls of a thread show. Groups come in the order in which they were made, and
    so do their threads.
    """
    if len(groups) == 1:
        return dict.fromkeys(threads, groups[0])
    clusters: list[list[int]] = []
    for thread in sorted(threads):
        if clusters and thread - clusters[-1][-1] <= _NEAR:
            clusters[-1].append(thread)
        else:
            clusters.append([thread])
    shown = [set().union(*(sizes.get(thread, set()) for thread in cluster)) for cluster in clusters]
    found = _in_order(shown, groups)
    return {
        thread: group for cluster, group in zip(clusters, found, strict=True) if group is not None for thread in cluster
    }


def _in_order(shown: Sequence[set[int]], groups: Sequence[Group]) -> list[Group | None]:
    """The group of each cluster: the only assignment in order that fits the sizes, else only what all of them share."""
    fits = _assignments(tuple(shown), tuple(groups), 0)
    return [next(iter(options)) if len(options := {one[at] for one in fits}) == 1 else None for at in range(len(shown))]


def _assignments(shown: tuple[set[int], ...], groups: tuple[Group, ...], depth: int) -> list[tuple[Group, ...]]:
    """All increasing assignments of clusters to groups that fit the sizes; at most some thousand are looked at."""
    if not shown:
        return [()]
    found: list[tuple[Group, ...]] = []
    for at in range(len(groups) - len(shown) + 1):
        if shown[0] and shown[0] != {groups[at].size}:
            continue
        found += [(groups[at], *rest) for rest in _assignments(shown[1:], groups[at + 1 :], depth + 1)]
        if len(found) > 5000:
            break
    return found
