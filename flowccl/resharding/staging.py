"""Plans in bounded memory: chunks divided into slices, and the completion time of the stages, overlapped."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.errors import InvalidScheduleError
from flowccl.resharding.pieces import Pieces
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.routing import PieceTrees, RoundTrees, SourceSets, repeated
from flowccl.resharding.scheduling import within_limits
from flowccl.resharding.steps import step_table
from flowccl.resharding.traffic import TrafficClass
from flowccl.schedule.generation.job_shop import Jobs, jobs_on_trees
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.transform import left_shift
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

MOST_SLICES = 4096
"""The most slices into which chunks are divided."""


def staging_bytes(plan: ReshardPlan) -> int:
    """Return the memory for messages and relayed slices, on the rank with most of it."""
    return step_table(plan).staging_bytes


def in_bucket(plan: ReshardPlan, bucket_bytes: int) -> ReshardPlan | None:
    """Return the plan with the fewest slices that fit into the bucket; None if no number of slices does."""
    low, high = 1, 1
    while staging_bytes(replace(plan, slices=high)) > bucket_bytes:
        low, high = high + 1, high * 2
        if high > MOST_SLICES:
            return None
    while low < high:
        middle = (low + high) // 2
        if staging_bytes(replace(plan, slices=middle)) <= bucket_bytes:
            high = middle
        else:
            low = middle + 1
    return replace(plan, slices=high)


def staged_ps(topology: Topology, sets: SourceSets, classes: list[TrafficClass], one: RoundTrees, stages: int) -> int:
    """Return the completion time of a plan in stages, each a round on the same trees with its fraction of all bytes.

    Stages are staggered rounds: each starts one period after the one before. The starts repeat with every period, so
    that a few stages, which are verified, prove all. Where a machine has limits, stages follow each other instead.
    """
    few = [TrafficClass(c.sources, c.targets, -(-c.bytes // stages)) for c in classes]
    _, on_trees = repeated(topology, sets, few, one, 1, 1)
    jobs = jobs_on_trees(topology, on_trees.demand, on_trees.trees)
    if topology.has_extra_constraints or topology.has_overheads:
        alone = within_limits(jobs.in_order(-jobs.tail, NEVER), topology)
        return NEVER if alone is None else alone.finish_ps * stages
    plan = _Stages.of(jobs)
    overlapping = min(stages, plan.last_ps // plan.period_ps + 2)
    _verify_stages(topology, sets, few, one, plan, overlapping)
    return (stages - 1) * plan.period_ps + plan.last_ps


@dataclass(frozen=True, eq=False)
class _Stages:
    """Stages that start one period after another; `start_ps` is when each job of the first stage starts.

    The plan of a period comes from the links alone: all jobs once, as if no data were missing. The period is the
    longest time from the first to the last use of a link. Each job then starts a whole number of periods later, when
    its data has arrived, so that no link carries more than in the plan.
    """

    start_ps: NDArray[np.int64]
    period_ps: int
    last_ps: int

    @classmethod
    def of(cls, jobs: Jobs) -> "_Stages":
        """The stages of the jobs of one of them."""
        count, above = len(jobs.chunk), jobs.parent
        none = np.full(count, -1, dtype=np.int64)
        free = replace(jobs, parent=none, feeding_hop=none)
        plan = free.dispatched(_total(above, np.ones(count, dtype=np.int64)), NEVER)
        assert plan is not None
        timing, start = plan.timing, plan.start_ps
        first, last = np.full(len(jobs.topology.links), NEVER), np.zeros(len(jobs.topology.links), dtype=np.int64)
        np.minimum.at(first, timing.hop_link, timing.hop_from_ps)
        np.maximum.at(last, timing.hop_link, timing.hop_to_ps)
        period = max(int((last - first)[timing.hop_link].max()), 1)
        arrival = np.zeros(count, dtype=np.int64)
        np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
        late = np.where(above < 0, 0, np.maximum(-((start - arrival[above]) // period), 0))
        delay = _total(above, late) * period
        return cls(start + delay, period, int((arrival + delay).max()))


def _total(above: NDArray[np.int64], value: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sum of the values of each job and of all before it; `above` is the job that feeds it, or -1."""
    total = value.copy()
    for job, before in enumerate(above.tolist()):  # jobs come after those that feed them
        total[job] += total[before] if before >= 0 else 0
    return total


def _verify_stages(
    topology: Topology, sets: SourceSets, few: list[TrafficClass], one: RoundTrees, plan: _Stages, stages: int
) -> None:
    """Verify as many stages as overlap."""
    several = [TrafficClass(c.sources, c.targets, c.bytes * stages) for c in few]
    pieces, on_trees = repeated(topology, sets, several, one, stages, 1)
    jobs = jobs_on_trees(topology, on_trees.demand, on_trees.trees)
    count = np.bincount(jobs.chunk, minlength=len(on_trees.piece))
    first = np.cumsum(count) - count
    number = np.arange(len(jobs.chunk)) - first[jobs.chunk]
    in_first = np.cumsum(np.where(pieces.round_number[on_trees.piece] == 0, count, 0)) - count
    same = in_first[_templates(on_trees, pieces)[jobs.chunk]] + number
    start = plan.start_ps[same] + pieces.round_number[on_trees.piece][jobs.chunk] * plan.period_ps
    made = jobs.at(start)
    violations = verify(left_shift(made)) if fits(made) else ["the rounds do not fit"]
    if violations:
        raise InvalidScheduleError(f"staggered stages are invalid: {violations[0]}")


def _templates(on_trees: PieceTrees, pieces: Pieces) -> NDArray[np.int64]:
    """For each chunk, the chunk of round 0 on the same tree: that of the template piece with the same source."""
    gpus = on_trees.demand.num_gpus
    key = on_trees.piece * gpus + on_trees.demand.source  # sorted, since chunks are in order of (piece, source)
    return np.searchsorted(key, pieces.template[on_trees.piece] * gpus + on_trees.demand.source).astype(np.int64)
