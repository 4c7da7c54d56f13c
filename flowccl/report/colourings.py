"""What the colours of a timeline can mean: those choices that tell the transfers of a schedule apart."""

from dataclasses import asdict, dataclass
from typing import Any

from flowccl.report.columns import Columns


@dataclass(frozen=True, slots=True)
class Colouring:
    """A choice: its word, the column of transfers, what it means, and the names of its values (nodes, chunks, list)."""

    key: str
    column: str
    what: str
    names: str | tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The choice for the script of the page."""
        return asdict(self)


_CHOICES = (
    Colouring("phase", "reduce", "copied, or reduced at the destination", ("copy", "reduce")),
    Colouring("source", "source", "GPU that has the chunk from the start", "nodes"),
    Colouring("destination", "destination", "GPU that gets the chunk in the end", "nodes"),
    Colouring("chunk", "chunk", "chunk", "chunks"),
    Colouring("sender", "src", "node that sends the transfer", "nodes"),
)


def colourings(transfers: Columns) -> list[Colouring]:
    """Return the choices in which transfers differ, the most telling first; a choice without a difference is left out.

    An allreduce has phases, but no source or destination of its own for each chunk; a reduce_scatter has destinations.
    """
    found = [choice for choice in _CHOICES if len(column := transfers[choice.column]) and (column != column[0]).any()]
    return found or [choice for choice in _CHOICES if choice.key == "chunk"]
