"""The plan of probes, as data: who sends how much to whom, one link alone, two together, many together.

A probe is answered, so it is timed by one clock, that of the sender: n chunks one after the other cost n times (there
and back), n at once cost one (TACCL section 2.1). Probes run at the same time only where they touch different hosts, so
the number of rounds grows with the ranks of a host, not with the square of all ranks.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from random import Random

from flowccl.errors import InputError
from flowccl.units import parse_bytes

Ends = tuple[int, int]  # (sending rank, receiving rank)
MOST_RANKS = 256
PAIR = "pair"
BUSY = "busy"  # probes of few bytes while every rank sends and receives
_MOST_BYTES = 32_000_000  # of one link in a probe of several
_WIDEST = 8  # links of one rank that are probed at once
_PARTS = (1, 4, 16)  # sets larger than pairs carry all of their bytes, a fourth and a sixteenth
_BUSY = ((16, 1), (64, 1), (64, 8))  # probes of few bytes: parts of all of them, and in how many chunks at once


@dataclass(frozen=True)
class PlanOptions:
    """How much to probe.

    `sizes` are those of single chunks, sent `chunks` times. Everything is probed in so many `passes`, there and back
    through the plan, so that what disturbs for a while disturbs only one of them. In each pass, `repeats` of every
    probe of a link alone are kept, after one that is not; of links together `repeats_together`. At most `pairs` pairs
    of links are probed together (all of up to 8 ranks), each for about `together_s`.
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


@dataclass(frozen=True, slots=True)
class Probe:
    """What runs together: each link carries `chunks` chunks of its bytes, all at once or one after the other.

    `covers` are the links that the finding is about, where it is about more than those that are probed.
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
        """Who takes part."""
        return tuple(sorted({rank for link in self.links for rank in link}))

    @property
    def alone(self) -> bool:
        """Whether one link has the machine for itself."""
        return len(self.links) == 1

    @property
    def latencies(self) -> int:
        """How many latencies the time has: there and back, for each chunk or once."""
        return 2 if self.at_once else 2 * self.chunks

    @property
    def link_bytes(self) -> tuple[int, ...]:
        """Bytes that each link carries."""
        return tuple(self.chunks * size for size in self.chunk_bytes)


Round = tuple[Probe, ...]
"""Probes that run at the same time, on different hosts."""


@dataclass(frozen=True, slots=True)
class Question:
    """Links to probe together, and the links that the answer is about."""

    name: str
    links: tuple[Ends, ...]
    covers: tuple[Ends, ...]


def check_ranks(ranks: int) -> None:
    """Refuse what cannot be profiled."""
    if ranks < 2:
        raise InputError(f"a profile needs at least 2 ranks, got {ranks}: there is no link to measure; give --ranks 2")
    if ranks > MOST_RANKS:
        raise InputError(
            f"a profile takes at most {MOST_RANKS} ranks, got {ranks}; profile two hosts, and copy what was found"
        )


def all_links(ranks: int) -> list[Ends]:
    """Every rank to every other."""
    return list(permutations(range(ranks), 2))


def alone_rounds(hosts: Sequence[str], options: PlanOptions) -> list[Round]:
    """Each link alone on its hosts: every size, one after the other and at once."""
    turns = _pack([(link,) for link in _tournament(hosts)], hosts)
    shapes = [(size, at_once) for size in options.sizes for at_once in (False, True)]
    rounds = [
        tuple(Probe("alone", links, (size,), options.chunks, at_once, options.repeats) for links in turn)
        for turn in turns
        for size, at_once in shapes
    ]
    return _there_and_back(rounds, options.passes)


def _there_and_back(rounds: list[Round], passes: int) -> list[Round]:
    return [turn for number in range(passes) for turn in (rounds[::-1] if number % 2 else rounds)]


def together_rounds(
    hosts: Sequence[str], options: PlanOptions, GBps: dict[Ends, float], sizes: dict[Ends, int] | None = None
) -> list[Round]:
    """Links together: pairs, then the sets that a port, a host or the whole machine may hold back, then few bytes.

    Every link gets bytes for about `together_s` of its own bandwidth, so that all are busy to the end; sets that are
    larger than pairs also get fewer, for what many share (caches, cores) may depend on how much it is.
    """
    chosen = together_bytes(GBps, options) if sizes is None else sizes
    asked = [q for q in questions(hosts, options) if all(link in chosen for link in q.links)]
    by_links = {q.links: q for q in asked}

    def probe(links: tuple[Ends, ...], part: int) -> Probe:
        carried = tuple(max(chosen[link] // part, 1) for link in links)
        question = by_links[links]
        return Probe(question.name, links, carried, 1, True, options.repeats_together, question.covers)

    rounds = []
    for turn in _pack(list(by_links), hosts):
        for part in _PARTS:
            now = [links for links in turn if part == 1 or by_links[links].name != PAIR]
            rounds += [tuple(probe(links, part) for links in now)] if now else []
    return _there_and_back(rounds + _busy_rounds(len(hosts), options, chosen), options.passes)


def _busy_rounds(ranks: int, options: PlanOptions, chosen: dict[Ends, int]) -> list[Round]:
    """All ranks at work on few bytes: some, a fourth of them, and that fourth in eight chunks at once.

    The first two tell what a call takes without any bytes, the last two what a message takes of its processes.
    """
    rounds: list[Round] = []
    for question in _of_all(ranks):
        for part, chunks in _BUSY if all(link in chosen for link in question.links) else ():
            sizes = tuple(max(chosen[link] // part // chunks, 1) for link in question.links)
            rounds.append((Probe(BUSY, question.links, sizes, chunks, True, options.repeats),))
    return rounds


def together_bytes(GBps: dict[Ends, float], options: PlanOptions) -> dict[Ends, int]:
    """Bytes of each link in a probe of several."""
    return {
        link: min(max(int(rate * 1e9 * options.together_s), max(options.sizes) // 8), _MOST_BYTES)
        for link, rate in GBps.items()
    }


def questions(hosts: Sequence[str], options: PlanOptions) -> list[Question]:
    """All links that are probed together; the smallest sets first."""
    links = all_links(len(hosts))
    every = len(links) * (len(links) - 1) // 2
    pairs: Iterable[tuple[Ends, Ends]] = combinations(links, 2)
    if every > options.pairs:
        pairs = _some_pairs(hosts, options.pairs)
    asked = [Question(PAIR, pair, pair) for pair in pairs]
    met = {frozenset(q.links) for q in asked}
    for question in _sets(hosts):
        if len(question.links) > 1 and frozenset(question.links) not in met:
            met.add(frozenset(question.links))
            asked.append(question)
    return asked


def pairs_left_out(hosts: Sequence[str], options: PlanOptions) -> int:
    """How many pairs of links are never probed together."""
    links = len(hosts) * (len(hosts) - 1)
    return links * (links - 1) // 2 - sum(q.name == PAIR for q in questions(hosts, options))


# -- which links ----------------------------------------------------------------------------------------------------


def ranks_of(hosts: Sequence[str]) -> dict[str, list[int]]:
    """The ranks of each host."""
    members: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        members.setdefault(host, []).append(rank)
    return members


def _tournament(hosts: Sequence[str]) -> list[Ends]:
    """All links in an order that packs well: within hosts, then days on which every host meets one other."""
    members = list(ranks_of(hosts).values())
    ordered = [(group, group) for group in members]
    circle: list[list[int]] = members if len(members) % 2 == 0 else [*members, []]
    for _ in range(len(circle) - 1):
        day = list(zip(circle[: len(circle) // 2], circle[::-1], strict=False))
        ordered += day + [(right, left) for left, right in day]
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [(a, b) for left, right in ordered for a in left for b in right if a != b]


def _to_the_next(hosts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """The ranks of each host and of the next one, every other first, so that they pack; none for a single host."""
    members = list(ranks_of(hosts).values())
    if len(members) < 2:
        return []
    order = [*range(0, len(members), 2), *range(1, len(members), 2)]
    return [(members[at], members[(at + 1) % len(members)]) for at in order]


def _pack(sets: list[tuple[Ends, ...]], hosts: Sequence[str]) -> list[list[tuple[Ends, ...]]]:
    """Rounds of sets of links: each set in the first round in which its hosts have had all their earlier ones."""
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
    """Pairs of links where all are too many: those of each host (at most so many), and from each host to the next."""
    members = list(ranks_of(hosts).values())
    chosen: list[tuple[Ends, Ends]] = []
    for group in members:
        inside = list(combinations(permutations(group, 2), 2))
        chosen += inside if len(inside) <= most else sorted(Random(0).sample(inside, most))
    for group, other in _to_the_next(hosts):
        for (i, a), (k, b) in combinations(enumerate(group), 2):
            for shift in (0, 1):
                ends = other[(i + shift) % len(other)], other[(k + shift) % len(other)]
                chosen.append(((a, ends[0]), (b, ends[1])))
    return chosen


def _sets(hosts: Sequence[str]) -> list[Question]:
    """What a port, a host or the whole machine may hold back."""
    ranks, links = len(hosts), all_links(len(hosts))
    result = []
    for rank in range(ranks):
        others = [other for other in range(ranks) if other != rank]
        some = others[:: -(-len(others) // _WIDEST)]
        result.append(_question(f"out of gpu{rank}", [(rank, k) for k in some], [(rank, k) for k in others]))
        result.append(_question(f"into gpu{rank}", [(k, rank) for k in some], [(k, rank) for k in others]))
    for here, there in _to_the_next(hosts):
        name = hosts[here[0]]
        across = [(a, there[i % len(there)]) for i, a in enumerate(here)]
        leave = [(a, b) for a, b in links if hosts[a] == name != hosts[b]]
        enter = [(b, a) for a, b in leave]
        result.append(_question(f"out of {name}", across, leave))
        result.append(_question(f"into {name}", [(b, a) for a, b in across], enter))
    return result + _of_all(ranks)


def _of_all(ranks: int) -> list[Question]:
    """All ranks at once: each to the next, and, where they are not too many, each to each."""
    links = all_links(ranks)
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    return [_question("everything", some, links) for some in ([ring, links] if 2 < ranks <= 2 * _WIDEST else [ring])]


def _question(name: str, links: list[Ends], covers: list[Ends]) -> Question:
    return Question(name, tuple(links), tuple(covers))
