"""Compare methods, baselines, published results and the lower bound over many sizes."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flowccl.demand.collectives import collective_name
from flowccl.demand.files import root_if_named
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.papers.published import published_us
from flowccl.result import Result
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.synthesis.options import SearchOptions
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, parse_bytes
from flowccl.verifier.bound import bound_of
from flowccl.wording import percent

HALVES = "reduce-scatter+allgather"
"""The column for the sum of the completion times of a reduce_scatter and an allgather, a baseline of allreduce."""
BASELINES = (
    "hierarchical",
    "multi-ring",
    "double-binary-tree",
    "ring",
    "recursive-doubling",
    "direct",
    "tree",
    "in-network",
    HALVES,
)
"""Columns with textbook algorithms."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method answered: the method of the portfolio that found it, its chunks, and the seconds it took."""

    method: str
    chunks: int
    chunk_bytes: int
    transfers: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """Completion times in us by column (method or published synthesizer) for one size, and the lower bound.

    `answers` describes the schedules of the columns that are methods.
    """

    size_bytes: int
    finish_us: dict[str, float | None]
    lower_bound_us: float
    bound_witness: str
    answers: dict[str, Answer] = field(default_factory=dict)

    def algbw_GBps(self, column: str) -> float | None:
        """Size / completion time; the column "bound" is that of the lower bound."""
        finish = self.lower_bound_us if column == "bound" else self.finish_us.get(column)
        return None if not finish else self.size_bytes / finish / 1000

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object, for scripts."""
        return {
            "size_bytes": self.size_bytes,
            "lower_bound_us": self.lower_bound_us,
            "bound_witness": self.bound_witness,
            "finish_us": self.finish_us,
            "answers": {column: asdict(answer) for column, answer in self.answers.items()},
        }


def parse_sizes(text: str) -> list[int]:
    """Sizes from a range "1KB:1GB" (1, 4, 16, 64 and 256 of each unit) or a list "1KB,1MB"."""
    if ":" not in text:
        return [parse_bytes(part) for part in text.split(",")]
    low, _, high = text.partition(":")
    first, last = parse_bytes(low), parse_bytes(high)
    if first > last:
        raise InputError(f"sizes {text!r}: the first size is larger than the last; write {high.strip()}:{low.strip()}")
    steps = [scale * 1000**power for power in range(6) for scale in (1, 4, 16, 64, 256)]
    chosen = [size for size in steps if first <= size <= last]
    if not chosen:
        raise InputError(
            f"sizes {text!r}: the range contains none of 1, 4, 16, 64, 256 B, KB, MB, GB; write a list: 2KB,3KB"
        )
    return chosen


def compare(
    topology: Topology,
    collective: str,
    sizes: Sequence[int],
    methods: Sequence[str],
    search: SearchOptions | None = None,
    *,
    on_run: Callable[[int, str], None] = lambda size, method: None,
    on_row: Callable[[Comparison], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    **changed: Any,
) -> list[Comparison]:
    """Completion times of each method at each size; None if the method does not apply or finds nothing in time.

    `on_run` is called with the size and the method before each synthesis, `on_row` with each finished row.
    """
    options = replace(search or SearchOptions(), **changed)
    published = published_us(topology.name, collective)
    rows: list[Comparison] = []
    for size in sizes:
        finishes: dict[str, float | None] = {}
        answers: dict[str, Answer] = {}
        bound = None
        for method in methods:
            if should_stop():
                return rows
            on_run(size, method)
            if method == HALVES:
                finishes[method] = halves_us(topology, collective, size, options, should_stop)
                continue
            try:
                result = synthesize(topology, collective, size, options, method=method, should_stop=should_stop)
            except (DemandError, NothingFoundError):
                if method == "auto":
                    raise
                finishes[method] = None
                continue
            finishes[method], answers[method] = result.schedule.finish_us, _answer(result)
            if bound is None or result.bound.ps > bound.ps:
                bound = result.bound
        finishes |= {source: by_size.get(size) for source, by_size in published.items()}
        if bound is None:
            raise InputError(f"none of the methods {', '.join(methods)} applies to {collective} on {topology.name}")
        rows.append(Comparison(size, finishes, bound.us, bound.witness, answers))
        if on_row:
            on_row(rows[-1])
    return rows


@dataclass(frozen=True, slots=True)
class PlanBesideBaselines:
    """The completion time of a schedule, those of NCCL's ring and tree on the same machine and runtime, and the bound.

    The ring and the tree are those of the methods `multi-ring` and `double-binary-tree`, timed by the same model; None
    where the method does not apply.
    """

    method: str
    plan_us: float
    ring_us: float | None
    tree_us: float | None
    lower_bound_us: float

    def rows(self) -> list[tuple[str, float]]:
        """A label and a time for each that has one, the earliest first."""
        named = {
            "lower bound": self.lower_bound_us,
            f"this plan ({self.method})": self.plan_us,
            "NCCL's ring (multi-ring)": self.ring_us,
            "NCCL's tree (double-binary-tree)": self.tree_us,
        }
        return sorted(((name, us) for name, us in named.items() if us is not None), key=lambda row: row[1])

    def lines(self) -> list[str]:
        """The rows as text, each with its distance from the lower bound."""
        return [
            f"{name:<34}{us:>12.6g} us" + (f"{percent(us / self.lower_bound_us - 1):>12} above" if n else "")
            for n, (name, us) in enumerate(self.rows())
        ]


def beside_baselines(schedule: Schedule, *, time_limit_s: float = 3.0, seed: int = 0) -> PlanBesideBaselines:
    """Compare a schedule with NCCL's ring and tree for the same demand; each of them gets `time_limit_s`."""
    root = root_if_named(schedule.demand)
    runtime = "ideal" if schedule.runtime is None else schedule.runtime
    wanted = (schedule.demand,) if root is None else (schedule.demand.collective, schedule.demand.size_bytes)
    times: dict[str, float | None] = {}
    bounds_us = [bound_of(schedule).us]
    for method in ("multi-ring", "double-binary-tree"):
        try:
            result = synthesize(
                schedule.topology,
                *wanted,
                method=method,
                root=root or 0,
                runtime=runtime,
                sms=None if schedule.execution is None else schedule.execution.sms,
                time_limit_s=time_limit_s,
                seed=seed,
            )
        except (DemandError, NothingFoundError):
            times[method] = None
        else:
            times[method] = result.schedule.finish_us
            bounds_us.append(result.bound.us)
    ring_us, tree_us = times.values()
    return PlanBesideBaselines(schedule.method, schedule.finish_us, ring_us, tree_us, max(bounds_us))


def _answer(result: Result) -> Answer:
    schedule, demand = result.schedule, result.schedule.demand
    return Answer(schedule.method, demand.pieces, int(demand.chunk_bytes.min()), len(schedule), result.synthesis_s)


def halves_us(
    topology: Topology,
    collective: str,
    size_bytes: int,
    search: SearchOptions,
    should_stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """The sum of the completion times of a reduce_scatter and an allgather; None for other collectives than allreduce.

    Each of the two gets half of the time.
    """
    if collective_name(collective) != "allreduce":
        return None
    half = replace(search, time_limit_s=search.time_limit_s / 2)
    parts = (
        synthesize(topology, p, size_bytes, half, should_stop=should_stop) for p in ("reduce_scatter", "allgather")
    )
    return sum(part.schedule.finish_us for part in parts)


def header(columns: Sequence[str]) -> str:
    """The first line of the table."""
    cells = " ".join(f"{name:>{max(len(name), 10)}}" for name in columns)
    return f"{'size':>8} {'lower bound':>12} {cells}  gap of auto"


def line(row: Comparison) -> str:
    """One line of the table, completion times in us."""
    cells = [
        f"{'-' if finish is None else format(finish, '.6g'):>{max(len(name), 10)}}"
        for name, finish in row.finish_us.items()
    ]
    auto = row.finish_us.get("auto")
    gap = f"{percent(auto / row.lower_bound_us - 1):>13}" if auto else ""
    return f"{format_bytes(row.size_bytes):>8} {row.lower_bound_us:12.6g} " + " ".join(cells) + gap
