"""Violations of the model, and how messages name transfers and times."""

from dataclasses import dataclass

from flowccl.schedule.schedule import Schedule
from flowccl.units import PS_PER_US


@dataclass(frozen=True, slots=True)
class Violation:
    """One violation of the model: its kind, a message, and the transfers involved.

    Kinds: machine, route, message, start, relay, source, copy, link, limit, buffer, reduce, reduce rate, destination.
    """

    kind: str
    message: str
    transfers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def transfer_name(schedule: Schedule, transfer: int) -> str:
    """Return the name of a transfer in messages: "transfer 3 (chunk 7, gpu0 -> gpu4)"."""
    links = [k for k in schedule.routes.links(int(schedule.route[transfer])) if 0 <= k < len(schedule.topology.links)]
    nodes = schedule.topology.nodes
    roots = [nodes[schedule.topology.links[k].src].name for k in links if nodes[schedule.topology.links[k].src].stores]
    ends = [nodes[schedule.topology.links[k].dst].name for k in links if nodes[schedule.topology.links[k].dst].stores]
    path = f"{_some(roots)} -> {_some(ends)}"
    return f"transfer {transfer} (chunk {schedule.chunk[transfer]}, {path})"


def exact_us(ps: int) -> str:
    """Return a time in microseconds with all digits, so that times 1 ps apart look different: "1.499999 us"."""
    whole, part = divmod(abs(int(ps)), PS_PER_US)
    digits = f"{whole}.{part:06}".rstrip("0").rstrip(".")
    return f"{'-' if ps < 0 else ''}{digits} us"


def _some(names: list[str]) -> str:
    return "+".join(names[:3]) + (f"+{len(names) - 3} more" if len(names) > 3 else "") if names else "nowhere"
