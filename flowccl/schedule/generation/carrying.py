"""How a runtime carries out a schedule: the width of its groups of threadblocks, the protocol, the order."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.errors import InputError
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.machine import known_sms
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, RuntimeProfile
from flowccl.schedule.clock import route_costs
from flowccl.schedule.generation.collecting import merged_messages, staged_messages
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.generation.looping import Looper, Policy
from flowccl.schedule.generation.posting import posters_of
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology

EXPLORED = 2_000  # transfers: larger schedules are carried out in the variant that was best for the first of its kind
_NEAR = 1.1  # times the best of its kind: other variants are tried for schedules up to there
_FAR = 2.0  # times the best of any kind, in whose variant it is carried out: no other variants are tried beyond that
_WORTH = 0.01  # of the completion time: what collected messages must save
_SAFETY = 1.5  # a variant is tried only where this many times its expected seconds are left
_LEAST_MEASURED = 1_000  # transfers: what small schedules take is not in proportion to them
_LEAST_RATES = 1.0, 0.5, 0.1  # of its rate, below which a message waits: it is never slower, down to half or a tenth


@dataclass(frozen=True, slots=True)
class _Variant:
    """One variant of carrying out a schedule."""

    width: int = 1
    protocol: str = "Simple"
    policy: Policy = field(default_factory=Policy)
    paced: bool = False
    receivers: int = 1  # groups that work together on what arrives
    collected: str = ""  # "stage": all that takes the same route in a stage is one message; "piece": one for each piece


@dataclass
class Carrier:
    """Carries out schedules on a runtime, on a machine, with at most `sms` threadblocks on a GPU.

    The machine is the user's. Schedules may have been made for another one with the same links, whose bandwidths and
    latencies stand for the costs of messages. The variants that were best for schedules of a kind are tried first, and
    only with these `protocols`, and variants only as long as the search `has_time` for one more. With a symmetry
    `group`, schedules are those of GPU 0's data; without loops.
    """

    profile: RuntimeProfile
    topology: Topology
    sms: int
    protocols: tuple[str, ...] = ("Simple", "LL")
    has_time: Callable[[float], bool] = lambda seconds: True
    group: RegularGroup | None = None
    transfer_s: float = 0.0  # the most seconds that a transfer has taken so far, in one variant
    known: dict[tuple[str, int], _Variant] = field(default_factory=dict)
    best_ps: dict[tuple[str, int], int] = field(default_factory=dict)
    noted: list[Schedule] = field(default_factory=list)

    def __call__(self, schedule: Schedule, anew: bool = False) -> Schedule | None:
        """Return the schedule as the runtime carries it out, in the best variant found; None where it cannot.

        If `anew`, variants are tried as for the first of its kind.
        """
        kind = schedule.method.partition(",")[0]
        key, protocols = (kind, len(schedule.demand)), self._protocols(schedule)
        usual = self.known.get(("", 0), _Variant(protocol=protocols[0]))  # of the best schedule of any kind
        variant = self.known.get(key, self.known.get((kind, 0), usual))
        variant = variant if variant.protocol in protocols else replace(variant, protocol=protocols[0])
        search = _VariantSearch(self, schedule, variant)
        if search.best is None and self.known:
            search.narrow(self._widths(schedule))
        best_ps = min(list(self.best_ps.values()), default=NEVER)  # a copy: other threads add to it
        is_first = anew or key not in self.known
        if is_first and search.best is not None and search.best.finish_ps > _FAR * best_ps:
            return search.best
        is_near = search.best is None or search.best.finish_ps <= _NEAR * self.best_ps.get(key, search.best.finish_ps)
        thoroughly = is_small(schedule)
        if is_first or (thoroughly and is_near):
            several = is_first and thoroughly
            for collected in self._collections(schedule, search.best) if several else (variant.collected,):
                for protocol in protocols if thoroughly else (variant.protocol,):
                    near = search.variant if search.best is not None and not (collected or anew) else None
                    shapes = self._shapes(schedule, protocol, near)
                    search.improve(protocol, shapes, collected, thoroughly=thoroughly)
        if search.best is None:
            return None
        if is_near or key not in self.known:
            self.known[key] = self.known[kind, 0] = search.variant
        if search.best.finish_ps <= best_ps:
            self.known["", 0] = search.variant
        found = self._collected(search.best, search.variant) if is_near else search.best
        self.best_ps[key] = min(self.best_ps.get(key, found.finish_ps), found.finish_ps)
        return found

    def note(self, schedule: Schedule | None) -> None:
        """Keep a small schedule for loops until they take it: a late one may be early with them."""
        if schedule is not None and is_small(schedule):
            self.noted.append(schedule)

    def take_noted(self) -> list[Schedule]:
        """Return the schedules that were noted since the last call; other threads may note more meanwhile."""
        return [self.noted.pop() for _ in range(len(self.noted))][::-1]

    @property
    def looper(self) -> Looper:
        """What lets threadblocks repeat their operations, on the same machine."""
        return Looper(self.profile, self.topology, self.sms)

    def can_run(self, schedule: Schedule) -> bool:
        """Whether there is time to carry out a schedule in one more variant."""
        return self.has_time(_SAFETY * self.transfer_s * len(schedule))

    def run(
        self,
        schedule: Schedule,
        variant: _Variant,
        best: Schedule | None = None,
        message: NDArray[np.int32] | None = None,
        engines: dict[tuple[Any, ...], Engine] | None = None,
    ) -> Schedule | None:
        """Return the schedule, carried out in one variant; None where that is not possible or not earlier.

        `engines` are those of other variants, which share what does not depend on the policy: one more is added.
        """
        began_s = thread_time()
        try:
            return self._run(schedule, variant, best, message, {} if engines is None else engines)
        finally:
            self.transfer_s = max(self.transfer_s, (thread_time() - began_s) / max(len(schedule), _LEAST_MEASURED))

    def _run(
        self,
        schedule: Schedule,
        variant: _Variant,
        best: Schedule | None,
        message: NDArray[np.int32] | None,
        engines: dict[tuple[Any, ...], Engine],
    ) -> Schedule | None:
        slots = variant.width * variant.receivers
        if slots > 1 and (not _units(schedule) or _units(schedule) % slots):
            return None
        try:
            execution = self.execution(schedule, variant.width, variant.protocol, variant.receivers)
        except InputError:
            return None
        shape = variant.width, variant.receivers, variant.protocol, variant.paced, variant.collected
        if shape not in engines:
            if message is None and variant.collected:
                message = staged_messages(schedule, variant.collected == "piece")
            pace = schedule.rate_GBps if variant.paced else None
            engines[shape] = Engine(schedule, execution, self.topology, message, pace, group=self.group)
        engine = engines[shape]
        policy, give_up_ps = variant.policy, NEVER if best is None else best.finish_ps
        key = -engine.tail_ps if policy.longest_first else None
        return engine.run(key, policy.least, give_up_ps, leaves_capacity=policy.leaves_capacity)

    def execution(self, schedule: Schedule, width: int, protocol: str, receivers: int = 1) -> Execution:
        """Return the execution with groups of a width; raise InputError where the threadblocks do not suffice."""
        return Execution(self.profile, self.sms, width, self._posters(schedule), protocol, receivers=receivers)

    def _posters(self, schedule: Schedule) -> int:
        """The threadblocks of a GPU that post messages to NICs and wait for those from there."""
        if "posters" not in schedule.cache:
            schedule.cache["posters"] = posters_of(*self._nic_messages(schedule))
        found: int = schedule.cache["posters"]
        return found

    def _nic_messages(self, schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The senders and receivers of all messages over NICs."""
        shape = schedule.shape
        costs = route_costs(self.topology, shape, Execution(self.profile, self.sms))
        first = np.flatnonzero(schedule.leader == np.arange(len(schedule)))
        first = first[costs.is_proxied[schedule.route[first]]]
        route = schedule.route[first]
        src, dst = shape.root_node[shape.root_ptr[:-1][route]], shape.end_node[shape.end_ptr[:-1][route]]
        if self.group is None:
            return src.astype(np.int64), dst.astype(np.int64)
        there, back = self.group.difference(dst, src), self.group.difference(src, dst)
        own = np.zeros(len(src), np.int64)
        return np.append(own, back.astype(np.int64)), np.append(there.astype(np.int64), own)

    def _protocols(self, schedule: Schedule) -> tuple[str, ...]:
        """The protocols that can carry the schedule; at least one."""
        possible = ("Simple", "LL") if self._has_packets(schedule) else ("Simple",)
        return tuple(name for name in possible if name in self.protocols) or possible[:1]

    def _has_packets(self, schedule: Schedule) -> bool:
        """Whether all messages can be packets: aligned, none over a NIC, and none an operation of a switch."""
        limits, shape = self.profile.limits, schedule.shape
        known = limits is not None and limits.one_sided and "LL" in limits.protocols
        pairs = bool(np.all(np.diff(shape.root_ptr) == 1) and np.all(np.diff(shape.end_ptr) == 1))
        aligned = not np.any(schedule.demand.chunk_bytes % ALIGNMENT_BYTES)
        return known and pairs and aligned and not self._posters(schedule)

    def _collections(self, schedule: Schedule, found: Schedule | None) -> list[str]:
        """What may be collected in messages: nothing, and what saves enough messages to matter for a schedule."""
        counts = {"": len(set(schedule.leader.tolist()))}
        for name in ("piece", "stage"):
            counts[name] = len(set(staged_messages(schedule, name == "piece").tolist()))
        names = list({count: name for name, count in reversed(counts.items())}.values())[::-1]
        if found is None or found.costs is None:
            return names
        each_ps = float(np.mean(found.costs.overhead_ps + found.costs.signal_ps))
        saved = {name: (counts[""] - counts[name]) / self.topology.num_gpus * each_ps for name in names}
        return [name for name in names if not name or saved[name] > _WORTH * found.finish_ps]

    def _shapes(self, schedule: Schedule, protocol: str, near: _Variant | None) -> list[tuple[int, int]]:
        """Widths of groups, each with the numbers of groups that may work together on what arrives.

        Those `near` a known variant only, where there is one.
        """
        sizes = self._widths(schedule)
        widths = _beside(sizes, near.width) if near is not None and self.known else sizes
        if not schedule.demand.reduces or protocol != "Simple":
            return [(width, 1) for width in widths]
        slots = _beside(sizes, near.width * near.receivers) if near is not None and self.known else sizes
        return [(width, many // width) for width in widths for many in sorted({width, *slots}) if many % width == 0]

    def _widths(self, schedule: Schedule) -> list[int]:
        """Numbers that divide all chunks into aligned parts and fill the fastest links, the ports of a GPU.

        Each at least twice the one before: powers of two where these divide. None is twice what fills the links: a
        chunk of a prime number of units would else occupy most threadblocks of a GPU for a few bytes each.
        """
        rates = [self.profile.costs.operation(name).GBps for name in ("put", "reduce")]
        slowest = min(rates) if schedule.demand.reduces else rates[0]
        if not slowest:
            return [1]
        inside = np.array([kind != "nic" for kind in self.topology.link_kinds])
        out = np.bincount(self.topology.link_src[inside], self.topology.link_GBps[inside], len(self.topology.nodes))
        fastest = float(out[: self.topology.num_gpus].max(initial=0.0))
        units, widths = _units(schedule), [1]
        most = min(self.sms, int(2 * fastest / slowest)) if units else 0
        for width in range(2, most + 1):
            if widths[-1] * slowest < fastest and width >= 2 * widths[-1] and units % width == 0:
                widths.append(width)
        return widths

    def _collected(self, best: Schedule, variant: _Variant) -> Schedule:
        """The schedule with more messages collected, in pairs, as long as that makes it earlier."""
        while self.can_run(best) and (message := merged_messages(best)) is not None:
            found = self.run(best, variant, best, message)
            if found is None or found.finish_ps >= best.finish_ps:
                return best
            best = found
        return best


@dataclass
class _VariantSearch:
    """The search for a good variant: one property after the other."""

    carrier: Carrier
    schedule: Schedule
    variant: _Variant
    best: Schedule | None = None
    engines: dict[tuple[Any, ...], Engine] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.best = self.carrier.run(self.schedule, self.variant, engines=self.engines)

    def narrow(self, widths: list[int]) -> None:
        """Find the widest groups that suffice for the messages, narrower than those of the variant."""
        wide = self.variant
        for width in reversed(widths):
            is_narrower = width < wide.width or (width == wide.width and wide.receivers > 1)
            if is_narrower and self._try(replace(wide, width=width, receivers=1)):
                return

    def improve(self, protocol: str, shapes: list[tuple[int, int]], collected: str, thoroughly: bool) -> None:
        """Try widths of groups with a protocol, in both orders, then other rates.

        Where not `thoroughly`, a width is tried with one order, and only the best one with more receivers.
        """
        chosen = replace(self.variant, protocol=protocol, collected=collected)
        orders = (False, True) if thoroughly else (chosen.policy.longest_first,)
        for alone in (True, False):
            for width, receivers in shapes:
                if (receivers == 1) == alone and (alone or thoroughly or width == self.variant.width):
                    for order in orders:
                        self._try_shape(chosen, width, receivers, order)
        if not thoroughly:
            self._try_shape(self.variant, self.variant.width, self.variant.receivers, not orders[0])
        for least in _LEAST_RATES:
            if least != self.variant.policy.least:
                self._try(replace(self.variant, policy=replace(self.variant.policy, least=least)))
        policy = self.variant.policy
        self._try(replace(self.variant, policy=replace(policy, leaves_capacity=not policy.leaves_capacity)))
        if self.schedule.rate_GBps.any():
            self._try(replace(self.variant, paced=not self.variant.paced))

    def _try_shape(self, like: _Variant, width: int, receivers: int, longest_first: bool) -> None:
        """Try a variant with another width, number of receivers, or order."""
        policy = replace(like.policy, longest_first=longest_first)
        variant = replace(like, width=width, receivers=receivers, policy=policy)
        if variant != self.variant:
            self._try(variant)

    def _try(self, variant: _Variant) -> bool:
        if not self.carrier.can_run(self.schedule):
            return False
        found = self.carrier.run(self.schedule, variant, self.best, engines=self.engines)
        if found is None or (self.best is not None and found.finish_ps >= self.best.finish_ps):
            return False
        self.best, self.variant = found, variant
        return True


def is_small(schedule: Schedule | None) -> bool:
    """Whether a schedule is carried out in many variants."""
    return schedule is not None and len(schedule) <= EXPLORED


def _units(schedule: Schedule) -> int:
    """The aligned units in the largest part that all chunks are multiples of; 0 where chunks are not aligned."""
    units, odd = divmod(int(np.gcd.reduce(schedule.demand.chunk_bytes)), ALIGNMENT_BYTES)
    return 0 if odd else units


def _beside(sizes: list[int], near: int) -> list[int]:
    """The sizes next to one."""
    at = bisect_left(sizes, near)
    return sizes[max(at - 1, 0) : at + 2]


def carried_out(
    schedule: Schedule, profile: RuntimeProfile, sms: int | None = None, protocols: tuple[str, ...] = ("Simple", "LL")
) -> Schedule:
    """Return a schedule as a runtime carries it out with at most `sms` threadblocks on a GPU, by default all SMs."""
    schedule = without_multicasts(schedule, profile)
    count = sms or known_sms(schedule.topology) or (profile.limits.blocks if profile.limits else 1)
    found = Carrier(profile, schedule.topology, count, protocols)(schedule)
    if found is None:
        raise InputError(
            f"{profile.name} cannot run this schedule with {count} threadblocks on a GPU; synthesize one with "
            f"--for {profile.name} --sms {count}"
        )
    return found


def without_multicasts(schedule: Schedule, profile: RuntimeProfile) -> Schedule:
    """Return the schedule of the papers' model with a transfer to each end in the place of each multicast.

    Raise InputError where a switch reduces: the runtime has no such operation for the schedule as it is.
    """
    shape = schedule.shape
    if schedule.execution is not None or not len(schedule):
        return schedule
    several = np.diff(shape.root_ptr) > 1
    if several[schedule.route].any():
        raise InputError(
            f"the schedule reduces inside a switch, which {profile.name} cannot do like this; synthesize one with "
            f"--for {profile.name}, which uses only what the runtime has"
        )
    ends = np.diff(shape.end_ptr)
    if not np.any(ends[schedule.route] > 1):
        return schedule
    paths = [_path(schedule, route, end) for route in range(len(ends)) for end in range(int(ends[route]))]
    row = np.repeat(np.arange(len(schedule)), ends[schedule.route])
    inside = np.arange(len(row)) - np.searchsorted(row, row)
    route = shape.end_ptr[schedule.route[row]] + inside
    return Schedule(
        schedule.topology,
        schedule.demand,
        Routes.from_lists(paths),
        schedule.chunk[row],
        route.astype(np.int32),
        schedule.start_ps[row],
        schedule.reduce[row],
        schedule.method,
    )


def _path(schedule: Schedule, route: int, end: int) -> list[int]:
    """The links of a route from its start to one of its ends."""
    shape, topology = schedule.shape, schedule.topology
    links = schedule.routes.links(route)
    feeds = {topology.links[link].dst: link for link in links}
    link: int | None = int(shape.routes.link[shape.end_hop[shape.end_ptr[route] + end]])
    path = []
    while link is not None:
        path.append(link)
        link = feeds.get(topology.links[link].src)
    return path[::-1]
