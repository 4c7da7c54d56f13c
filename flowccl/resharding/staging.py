"""Plans in bounded memory: chunks divided into slices, and the completion time of the stages, overlapped."""

from dataclasses import replace

import numpy as np

from flowccl.arrays import NEVER
from flowccl.errors import InvalidScheduleError
from flowccl.methods.trees.stagger import plan_stagger
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.routing import RoundTrees, SourceSets, repeated
from flowccl.resharding.scheduling import templates, within_limits
from flowccl.resharding.steps import step_table
from flowccl.resharding.traffic import TrafficClass
from flowccl.schedule.generation.job_shop import jobs_of
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
    pieces, on_trees = repeated(topology, sets, few, one, 1, 1)
    jobs = jobs_of(topology, on_trees.demand, on_trees.trees)
    if topology.has_extra_constraints or topology.has_overheads:
        alone = within_limits(jobs.in_order(-jobs.tail, NEVER), topology)
        return NEVER if alone is None else alone.finish_ps * stages
    plan = plan_stagger(jobs, templates(on_trees, pieces), np.zeros(len(on_trees.piece), dtype=np.int64))
    last = int((plan.periods * plan.period_ps + plan.start_ps + plan.takes_ps).max())
    overlapping = min(stages, last // plan.period_ps + 2)
    _verify_stages(topology, sets, few, one, overlapping)
    return (stages - 1) * plan.period_ps + last


def _verify_stages(topology: Topology, sets: SourceSets, few: list[TrafficClass], one: RoundTrees, stages: int) -> None:
    """Verify as many stages as overlap."""
    several = [TrafficClass(c.sources, c.targets, c.bytes * stages) for c in few]
    pieces, on_trees = repeated(topology, sets, several, one, stages, 1)
    jobs = jobs_of(topology, on_trees.demand, on_trees.trees)
    made = plan_stagger(jobs, templates(on_trees, pieces), pieces.round_number[on_trees.piece]).schedule()
    violations = [] if made is None else verify(made)
    if made is None or violations:
        reason = violations[0] if violations else "the rounds do not fit"
        raise InvalidScheduleError(f"staggered stages are invalid: {reason}")
