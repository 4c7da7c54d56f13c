"""The memory of a plan while it runs, beside the tensors themselves."""

from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.steps import step_table


def staging_bytes(plan: ReshardPlan) -> int:
    """Return the memory for messages and relayed chunks, on the rank with most of it."""
    return step_table(plan).staging_bytes
