"""Whose chunks are whose, in a demand that several tenants share."""

from collections.abc import Sequence
from dataclasses import dataclass

from flowccl.errors import DemandError


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant of a demand: its name, its weight, how many chunks are its own, and who may touch them.

    The chunks of the first tenant come first. `group` and `relays` are as in a demand of its own; None for all.
    """

    name: str
    weight: float
    chunks: int
    group: tuple[int, ...] | None = None
    relays: tuple[int, ...] | None = None

    def forbidden(self, num_gpus: int) -> tuple[int, ...]:
        """Ranks that may not even pass its chunks on."""
        return outsiders(num_gpus, self.group, self.relays)


def outsiders(num_gpus: int, group: tuple[int, ...] | None, relays: tuple[int, ...] | None) -> tuple[int, ...]:
    """Ranks that are neither in the group nor relays; none where the relays are not given."""
    if group is None or relays is None:
        return ()
    return tuple(sorted(set(range(num_gpus)) - set(group) - set(relays)))


def check_tenant_chunks(shares: Sequence[Share], chunks: int | None = None) -> None:
    """Raise DemandError where names are used twice, or the tenants do not have all chunks."""
    names = [share.name for share in shares]
    for name in names:
        if names.count(name) > 1:
            raise DemandError(f"tenant name {name!r} is used twice; names must differ")
    for share in shares:
        if share.chunks < 1:
            raise DemandError(f"tenant {share.name}: has no chunks")
    total = sum(share.chunks for share in shares)
    if shares and chunks is not None and total != chunks:
        raise DemandError(f"tenants: have {total} chunks together, the demand has {chunks}")
