"""One broken rule, in words."""

from dataclasses import dataclass

from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule: its kind, the words for people, and the transfers that break it.

    Kinds: machine, route, message, start, relay, source, copy, link, limit, buffer, reduce, destination.
    """

    kind: str
    message: str
    transfers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


def transfer_name(schedule: Schedule, transfer: int) -> str:
    """How messages call a transfer: "transfer 3 (chunk 7, gpu0 -> gpu4)"."""
    links = [k for k in schedule.routes.links(int(schedule.route[transfer])) if 0 <= k < len(schedule.topology.links)]
    nodes = schedule.topology.nodes
    roots = [nodes[schedule.topology.links[k].src].name for k in links if nodes[schedule.topology.links[k].src].stores]
    ends = [nodes[schedule.topology.links[k].dst].name for k in links if nodes[schedule.topology.links[k].dst].stores]
    path = f"{_some(roots)} -> {_some(ends)}"
    return f"transfer {transfer} (chunk {schedule.chunk[transfer]}, {path})"


def _some(names: list[str]) -> str:
    return "+".join(names[:3]) + (f"+{len(names) - 3} more" if len(names) > 3 else "") if names else "nowhere"
