"""The audit of a job: what every kind of calls took, could take, and what a plan would save."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flowccl.jobs.calls import Calls
from flowccl.jobs.evaluate import Evaluator
from flowccl.jobs.kinds import Kind, kinds_of, simultaneous, window_ns
from flowccl.jobs.matching import MatchedCalls, matched
from flowccl.jobs.placing import placed_group
from flowccl.jobs.rows import AuditRow
from flowccl.jobs.steps import Exposure, Steps, exposure, per_rank_ns, steps_of
from flowccl.jobs.suspects import NO_SUSPICION, Suspicion, suspicion
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.topology.topology import Topology

SEARCHED = 20
"""The kinds of calls for which plans are searched by default: those with the largest possible gain."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The audit of a job on a machine: rows sorted by what a plan saves, steps, clocks and overlap."""

    topology: Topology
    runtime: RuntimeProfile
    calls: Calls
    matched: MatchedCalls
    rows: tuple[AuditRow, ...]
    steps: Steps
    exposure: Exposure
    worth: float
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    suspicion: Suspicion = NO_SUSPICION

    @property
    def communication_us(self) -> float:
        """The time per step in which a rank communicates, waiting included, on average over the ranks."""
        return per_rank_ns(self.calls, self.exposure, self.ranks) / 1000 / self.steps.count

    @property
    def step_us(self) -> float | None:
        """The length of a step; None where the logs do not say it."""
        return None if self.steps.step_ns is None else self.steps.step_ns / 1000

    @property
    def possible_us(self) -> float:
        """What the hardware allows to save per step, on average over the ranks."""
        return sum(row.possible_us * self.weight(row) for row in self.rows)

    @property
    def saved_us(self) -> float:
        """What the plans that are worth it save per step, on average over the ranks."""
        return sum((row.saved_us or 0.0) * self.weight(row) for row in self.worthwhile)

    @property
    def waiting_us(self) -> float:
        """The time per step that a rank waits for others, on average over the ranks."""
        return sum(row.waiting_us * row.calls_per_step * self.weight(row) for row in self.rows)

    @property
    def worthwhile(self) -> tuple[AuditRow, ...]:
        """The rows whose plan saves at least the part `worth` of their time."""
        return tuple(row for row in self.rows if row.gain is not None and row.gain >= self.worth)

    @property
    def ranks(self) -> int:
        """The ranks of the job: those of all groups."""
        return len({rank for row in self.rows for rank in row.kind.group})

    def weight(self, row: AuditRow) -> float:
        """The part of the ranks that a row concerns, times the part of its time that no other call takes too."""
        return len(row.kind.group) / max(self.ranks, 1) * row.kind.exposed


def audit(
    calls: Calls,
    topology: Topology,
    runtime: RuntimeProfile,
    *,
    places: Sequence[int] | None = None,
    steps: int | None = None,
    time_limit_s: float = 5.0,
    searched: int = SEARCHED,
    worth: float = 0.05,
    sms: int | None = None,
    notes: Sequence[str] = (),
    on_phase: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Audit:
    """Return the audit of calls on a machine.

    `places` is the GPU of each rank; None means in order. Plans are searched for the `searched` kinds of calls that
    could gain most, `time_limit_s` seconds each.
    """
    on_phase("matching the calls of all ranks")
    found, busy = matched(calls), exposure(calls)
    when = steps_of(calls, found, steps)
    kinds = kinds_of(calls, found, busy.alone_ns)
    where = list(range(topology.num_gpus)) if places is None else list(places)
    gpus = [placed_group(kind, where, topology) for kind in kinds]
    evaluator = Evaluator(topology, runtime, time_limit_s=time_limit_s, sms=sms, should_stop=should_stop)
    rows = _rows(kinds, gpus, found, when, evaluator, on_phase, should_stop)
    rows = _with_plans(rows, evaluator, searched, on_phase, should_stop)
    rows.sort(key=lambda row: (-(row.saved_us or 0.0), -row.possible_us, -row.share))
    on_phase("comparing equivalent calls")
    slow = suspicion(rows, topology, lambda row: evaluator.latency_us(row.kind, row.gpus))
    stopped = should_stop()
    return Audit(topology, runtime, calls, found, tuple(rows), when, busy, worth, stopped, tuple(notes), slow)


def _rows(
    kinds: list[Kind],
    gpus: list[tuple[int, ...]],
    found: MatchedCalls,
    when: Steps,
    evaluator: Evaluator,
    on_phase: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> list[AuditRow]:
    beside = simultaneous(kinds, found)
    weight = np.array([np.nan_to_num(kind.total_ns) * max(len(kind.group), 1) for kind in kinds])
    total = float(weight.sum()) or 1.0
    rows = []
    for at, kind in enumerate(kinds):
        if should_stop():
            break
        on_phase(f"lower bounds: {at + 1} of {len(kinds)} kinds of calls")
        measured = None if np.isnan(kind.measured_ns) else kind.measured_ns / 1000
        extra: dict[str, Any] = {}
        if len(beside[at]) > 1:
            common = evaluator.bound_together([kinds[n] for n in beside[at]], [gpus[n] for n in beside[at]])
            if common is not None:
                window = window_ns(kinds, beside[at], found) / 1000
                extra = {"groups_together": len(beside[at]), "together": common, "window_us": window}
        rows.append(
            AuditRow(
                kind,
                gpus[at],
                kind.count / when.count,
                float(weight[at]) / total,
                measured,
                kind.waiting_ns / 1000,
                evaluator.library_us(kind, gpus[at]),
                evaluator.bound(kind, gpus[at]),
                **extra,
            )
        )
    return rows


def _with_plans(
    rows: list[AuditRow],
    evaluator: Evaluator,
    searched: int,
    on_phase: Callable[[str], None],
    should_stop: Callable[[], bool],
) -> list[AuditRow]:
    """The rows with plans: those that could gain most first; equivalent ones share a plan and count once."""
    from dataclasses import replace

    left = searched
    result = list(rows)
    order = sorted(range(len(rows)), key=lambda at: (-_possible(rows[at]), at))
    for at in order:
        row = rows[at]
        if row.bound is None or should_stop():
            continue
        if not evaluator.known_plan(row.kind, row.gpus):
            if left == 0:
                continue
            left -= 1
            on_phase(f"searching plans: {searched - left} of at most {min(searched, len(rows))}")
        result[at] = replace(row, plan=evaluator.plan(row.kind, row.gpus))
    return result


def _possible(row: AuditRow) -> float:
    """What a row could gain, times its ranks; of rows without times, NCCL's model takes the place of the time."""
    if row.measured_us is not None:
        return row.possible_us * len(row.gpus)
    if row.library_us is None or row.bound is None:
        return 0.0
    return max(row.library_us - row.bound.us, 0.0) * row.calls_per_step * len(row.gpus)
