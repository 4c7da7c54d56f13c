"""The probing plan as data: single links, pairs of links and larger sets, with the bytes that each link carries.

Every probe is answered, so one clock, that of the sender, measures it: n chunks one after the other cost n round trips,
n concurrent chunks cost one (TACCL section 2.1). Probes run at the same time only if they involve different hosts, so
the number of rounds grows with the ranks of a host, not with the square of all ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random
from typing import Any

from flowccl.errors import InputError
from flowccl.units import parse_bytes

Ends = tuple[int, int]  # (sending rank, receiving rank)
MOST_RANKS = 256
PAIR = "pair"
BUSY = "busy"  # small probes while every rank sends and receives
_MOST_BYTES = 32_000_000  # per link in a probe of several links
_WIDEST = 8  # links of one rank that are probed concurrently
_PARTS = (1, 4, 16)  # sets larger than pairs carry all of their bytes, a fourth and a sixteenth
_BUSY = ((16, 1), (64, 1), (64, 8))  # small probes: (divisor of the bytes, number of concurrent chunks)


@dataclass(frozen=True)
class PlanOptions:
    """Extent of the probing.

    Each probe of a single link sends `chunks` chunks of each of the `sizes`. The plan runs in several `passes`, every
    second one in reverse order, so a temporary disturbance affects only one pass. In each pass, every probe runs once
    as a warm-up and is then measured `repeats` times (`repeats_together` times for several links). At most `pairs`
    pairs of links are probed (all pairs of up to 8 ranks), each for about `together_s`.
    """

    sizes: tuple[int, ...] = (1_000, 32_000, 1_000_000, 4_000_000)
    chunks: int = 4
    passes: int = 2
    repeats: int = 8
    repeats_together: int = 5
    pairs: int = 2000
    together_s: float = 0.0005

    def __post_init__(self) -> None:
        if len(set(self.sizes)) < 2:
            raise InputError(f"--sizes: latency and bandwidth need two different sizes, got {len(set(self.sizes))}")
        for size in self.sizes:
            parse_bytes(size)
        if max(self.sizes) * self.chunks > 2**31:
            raise InputError(f"--sizes: {self.chunks} chunks must stay below 2 GiB, got {max(self.sizes)} bytes each")
        for name, least in (("chunks", 2), ("passes", 1), ("repeats", 2), ("repeats_together", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, got {getattr(self, name)}")


def options_from_json(value: dict[str, Any]) -> PlanOptions:
    """The options in the JSON value that `asdict` made."""
    return PlanOptions(**value | {"sizes": tuple(value["sizes"])})


@dataclass(frozen=True, slots=True)
class Probe:
    """Links probed together: each carries `chunks` chunks, concurrently (`at_once`) or one after the other.

    `covers` are the links that the result applies to, if these are more than the probed links.
    """

    name: str
    links: tuple[Ends, ...]
    chunk_bytes: tuple[int, ...]
    chunks: int
    at_once: bool
    repeats: int
    covers: tuple[Ends, ...] = ()

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that take part."""
        return tuple(sorted({rank for link in self.links for rank in link}))

    @property
    def alone(self) -> bool:
        """Whether this is a probe of a single link."""
        return len(self.links) == 1

    @property
    def latencies(self) -> int:
        """Number of latencies in the measured time: one round trip per chunk, or one in total."""
        return 2 if self.at_once else 2 * self.chunks

    @property
    def link_bytes(self) -> tuple[int, ...]:
        """Bytes that each link carries."""
        return tuple(self.chunks * size for size in self.chunk_bytes)


Round = tuple[Probe, ...]
"""Probes that run at the same time, on different hosts."""


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """Links to probe together, and the links that the result applies to."""

    name: str
    links: tuple[Ends, ...]
    covers: tuple[Ends, ...]


def check_ranks(ranks: int) -> None:
    """Raise InputError if this number of ranks cannot be profiled."""
    if ranks < 2:
        raise InputError(f"a profile needs at least 2 ranks, got {ranks}: there is no link to measure; give --ranks 2")
    if ranks > MOST_RANKS:
        raise InputError(
            f"a profile takes at most {MOST_RANKS} ranks, got {ranks}; profile two hosts and replicate the result"
        )


def all_links(ranks: int) -> list[Ends]:
    """Links from every rank to every other rank."""
    return list(permutations(range(ranks), 2))


def alone_rounds(hosts: Sequence[str], options: PlanOptions) -> list[Round]:
    """Rounds that probe each link alone on its hosts: every size, chunks one after the other and concurrently."""
    turns = _pack([(link,) for link in _tournament(hosts)], hosts)
    shapes = [(size, at_once) for size in options.sizes for at_once in (False, True)]
    rounds = [
        tuple(Probe("alone", links, (size,), options.chunks, at_once, options.repeats) for links in turn)
        for turn in turns
        for size, at_once in shapes
    ]
    return _alternating_passes(rounds, options.passes)


def _alternating_passes(rounds: list[Round], passes: int) -> list[Round]:
    return [turn for number in range(passes) for turn in (rounds[::-1] if number % 2 else rounds)]


def together_rounds(
    hosts: Sequence[str], options: PlanOptions, GBps: dict[Ends, float], sizes: dict[Ends, int] | None = None
) -> list[Round]:
    """Rounds that probe links together: pairs, sets that a port, a host or the machine may limit, and small probes.

    Every link gets bytes for about `together_s` of its own bandwidth, so all links are busy to the end. Sets larger
    than pairs are also probed with fewer bytes, since shared resources such as caches may depend on the amount.
    """
    chosen = together_bytes(GBps, options) if sizes is None else sizes
    asked = [q for q in probe_sets(hosts, options) if all(link in chosen for link in q.links)]
    by_links = {q.links: q for q in asked}

    def probe(links: tuple[Ends, ...], part: int) -> Probe:
        carried = tuple(max(chosen[link] // part, 1) for link in links)
        probe_set = by_links[links]
        return Probe(probe_set.name, links, carried, 1, True, options.repeats_together, probe_set.covers)

    rounds = []
    for turn in _pack(list(by_links), hosts):
        for part in _PARTS:
            now = [links for links in turn if part == 1 or by_links[links].name != PAIR]
            rounds += [tuple(probe(links, part) for links in now)] if now else []
    return _alternating_passes(rounds + _busy_rounds(len(hosts), options, chosen), options.passes)


def _busy_rounds(ranks: int, options: PlanOptions, chosen: dict[Ends, int]) -> list[Round]:
    """Small probes of all ranks: some bytes, a fourth of them, and that fourth in eight concurrent chunks.

    The first two show the time of a call without its bytes, the last two the overhead per message.
    """
    rounds: list[Round] = []
    for probe_set in _machine_wide_sets(ranks):
        for part, chunks in _BUSY if all(link in chosen for link in probe_set.links) else ():
            sizes = tuple(max(chosen[link] // part // chunks, 1) for link in probe_set.links)
            rounds.append((Probe(BUSY, probe_set.links, sizes, chunks, True, options.repeats),))
    return rounds


def together_bytes(GBps: dict[Ends, float], options: PlanOptions) -> dict[Ends, int]:
    """Bytes that each link carries in a probe of several links."""
    return {
        link: min(max(int(rate * 1e9 * options.together_s), max(options.sizes) // 8), _MOST_BYTES)
        for link, rate in GBps.items()
    }


def probe_sets(hosts: Sequence[str], options: PlanOptions) -> list[ProbeSet]:
    """All sets of links that are probed together, smallest sets first."""
    links = all_links(len(hosts))
    every = len(links) * (len(links) - 1) // 2
    pairs: Iterable[tuple[Ends, Ends]] = combinations(links, 2)
    if every > options.pairs:
        pairs = _some_pairs(hosts, options.pairs)
    asked = [ProbeSet(PAIR, pair, pair) for pair in pairs]
    met = {frozenset(q.links) for q in asked}
    for probe_set in _larger_sets(hosts):
        if len(probe_set.links) > 1 and frozenset(probe_set.links) not in met:
            met.add(frozenset(probe_set.links))
            asked.append(probe_set)
    return asked


def pairs_left_out(hosts: Sequence[str], options: PlanOptions) -> int:
    """Number of pairs of links that are never probed together."""
    links = len(hosts) * (len(hosts) - 1)
    return links * (links - 1) // 2 - sum(q.name == PAIR for q in probe_sets(hosts, options))


# -- which links ----------------------------------------------------------------------------------------------------


def ranks_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of each host."""
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return members


def _tournament(hosts: Sequence[str]) -> list[Ends]:
    """All links in an order that packs well: within hosts, then between hosts as in a round-robin tournament."""
    members = list(ranks_of(hosts).values())
    ordered = [(group, group) for group in members]
    rotation: list[list[int]] = members if len(members) % 2 == 0 else [*members, []]
    for _ in range(len(rotation) - 1):
        day = list(zip(rotation[: len(rotation) // 2], rotation[::-1], strict=False))
        ordered += day + [(right, left) for left, right in day]
        rotation = [rotation[0], rotation[-1], *rotation[1:-1]]
    return [(a, b) for left, right in ordered for a in left for b in right if a != b]


def _neighbouring_hosts(hosts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Ranks of each host and of the next host, even hosts first so that they pack; empty for a single host."""
    members = list(ranks_of(hosts).values())
    if len(members) < 2:
        return []
    order = [*range(0, len(members), 2), *range(1, len(members), 2)]
    return [(members[at], members[(at + 1) % len(members)]) for at in order]


def _pack(sets: list[tuple[Ends, ...]], hosts: Sequence[str]) -> list[list[tuple[Ends, ...]]]:
    """Pack sets of links into rounds: each set goes to the first round after all earlier sets of its hosts."""
    free: dict[str, int] = {}
    rounds: list[list[tuple[Ends, ...]]] = []
    for links in sets:
        touched = {hosts[rank] for link in links for rank in link}
        at = max(free.get(host, 0) for host in touched)
        free.update(dict.fromkeys(touched, at + 1))
        if at == len(rounds):
            rounds.append([])
        rounds[at].append(links)
    return rounds


def _some_pairs(hosts: Sequence[str], most: int) -> list[tuple[Ends, Ends]]:
    """A subset of the pairs of links: at most `most` within each host, and those from each host to the next."""
    members = list(ranks_of(hosts).values())
    chosen: list[tuple[Ends, Ends]] = []
    for group in members:
        inside = list(combinations(permutations(group, 2), 2))
        chosen += inside if len(inside) <= most else sorted(Random(0).sample(inside, most))
    for group, other in _neighbouring_hosts(hosts):
        for (i, a), (k, b) in combinations(enumerate(group), 2):
            for shift in (0, 1):
                ends = other[(i + shift) % len(other)], other[(k + shift) % len(other)]
                chosen.append(((a, ends[0]), (b, ends[1])))
    return chosen


def _larger_sets(hosts: Sequence[str]) -> list[ProbeSet]:
    """Sets of links that a port, a host or the whole machine may limit."""
    ranks, links = len(hosts), all_links(len(hosts))
    result = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        some = others[:: -(-len(others) // _WIDEST)]
        result.append(_probe_set(f"out of gpu{rank}", [(rank, k) for k in some], [(rank, k) for k in others]))
        result.append(_probe_set(f"into gpu{rank}", [(k, rank) for k in some], [(k, rank) for k in others]))
    for here, there in _neighbouring_hosts(hosts):
        name = hosts[here[0]]
        across = [(a, there[i % len(there)]) for i, a in enumerate(here)]
        leave = [(a, b) for a, b in links if hosts[a] == name != hosts[b]]
        enter = [(b, a) for a, b in leave]
        result.append(_probe_set(f"out of {name}", across, leave))
        result.append(_probe_set(f"into {name}", [(b, a) for a, b in across], enter))
    return result + _machine_wide_sets(ranks)


def _machine_wide_sets(ranks: int) -> list[ProbeSet]:
    """Sets with all ranks: each rank to the next and, for few ranks, each rank to every other."""
    links = all_links(ranks)
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return [_probe_set("everything", some, links) for some in ([ring, links] if 2 < ranks <= 2 * _WIDEST else [ring])]


def _probe_set(name: str, links: list[Ends], covers: list[Ends]) -> ProbeSet:
    return ProbeSet(name, tuple(links), tuple(covers))
