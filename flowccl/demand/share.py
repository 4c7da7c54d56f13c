"""The tenants of a shared demand and their chunks."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowccl.errors import DemandError


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant of a shared demand: its name, its weight, its number of chunks, and the GPUs that may handle them.

    The chunks of the first tenant come first. `group` and `relays` have the same meaning as in Demand; None means all.
    """

    name: str
    weight: float
    chunks: int
    group: tuple[int, ...] | None = None
    relays: tuple[int, ...] | None = None

    def forbidden(self, num_gpus: int) -> tuple[int, ...]:
        """Return the ranks that may not forward chunks of this tenant."""
        return outsiders(num_gpus, self.group, self.relays)


def outsiders(num_gpus: int, group: tuple[int, ...] | None, relays: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the ranks that are neither in the group nor relays; empty if the relays are not restricted."""
    if group is None or relays is None:
        return ()
    return tuple(sorted(set(range(num_gpus)) - set(group) - set(relays)))


def check_tenant_chunks(tenants: Sequence[Share], chunks: int | None = None) -> None:
    """Raise DemandError if a name is used twice or the chunk counts do not add up to `chunks`."""
    names = [tenant.name for tenant in tenants]
    for name in names:
        if names.count(name) > 1:
            raise DemandError(f"tenant name {name!r} is used twice; names must differ")
    for tenant in tenants:
        if tenant.chunks < 1:
            raise DemandError(f"tenant {tenant.name}: has no chunks")
    total = sum(tenant.chunks for tenant in tenants)
    if tenants and chunks is not None and total != chunks:
        raise DemandError(f"tenants: have {total} chunks in total, the demand has {chunks}")
