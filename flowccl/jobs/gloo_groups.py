"""Which process group a thread of gloo serves: its events name no group, but every group has threads of its own."""

from collections.abc import Mapping, Sequence

from flowccl.jobs.calls import Group

_NEAR = 3  # threads of one group are made one after the other: their numbers are usually at most this far apart
_THREADS = 2  # threads of a group, unless PyTorch is told otherwise
_MOST = 5000  # assignments that are looked at


def groups_of_threads(
    threads: Sequence[int], sizes: Mapping[int, set[int]], groups: Sequence[Group]
) -> dict[int, Group]:
    """Return the group of each thread; threads whose group cannot be told are left out.

    `sizes` are the group sizes that the calls of a thread show. Groups come in the order in which they were made, and
    so do their threads. Of all assignments that fit, those with the fewest groups count.
    """
    if len(groups) == 1:
        return dict.fromkeys(threads, groups[0])
    clusters: list[list[int]] = []
    for thread in sorted(threads):
        near = clusters and thread - clusters[-1][-1] <= _NEAR and len(clusters[-1]) < _THREADS
        if near and _agree(sizes, clusters[-1][-1], thread):
            clusters[-1].append(thread)
        else:
            clusters.append([thread])
    shown = [set().union(*(sizes.get(thread, set()) for thread in cluster)) for cluster in clusters]
    counts = [len(cluster) for cluster in clusters]
    fits = _assignments(shown, counts, [group.size for group in groups])
    fewest = min((len(set(one)) for one in fits), default=0)
    fits = [one for one in fits if len(set(one)) == fewest]
    found: dict[int, Group] = {}
    for at, cluster in enumerate(clusters):
        options = {one[at] for one in fits}
        if len(options) == 1:
            found |= dict.fromkeys(cluster, groups[options.pop()])
    return found


def _agree(sizes: Mapping[int, set[int]], one: int, other: int) -> bool:
    """Whether two threads may serve the same group: their calls do not show different sizes."""
    a, b = sizes.get(one, set()), sizes.get(other, set())
    return not a or not b or a == b


def _assignments(shown: Sequence[set[int]], counts: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """All assignments of clusters to groups in order that fit the sizes, with at most two threads for each group."""
    found: list[tuple[int, ...]] = [()]
    for size, count in zip(shown, counts, strict=True):
        longer = []
        for one in found[:_MOST]:
            for group in range(one[-1] if one else 0, len(sizes)):
                used = sum(c for g, c in zip(one, counts, strict=False) if g == group)
                if used + count <= _THREADS and (not size or size == {sizes[group]}):
                    longer.append((*one, group))
        found = longer
    return found
