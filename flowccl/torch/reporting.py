"""The report: which calls of this process ran by plans and which by the library, how often, and how long."""

from dataclasses import dataclass

from flowccl.run.call_log import CALLS, CallCount
from flowccl.units import format_bytes

_TITLES = ("call", "ranks", "device", "served by", "calls", "data", "time", "per call")


@dataclass(frozen=True, slots=True)
class Report:
    """The counts of each kind of call of this process, and what was said about catalogs. `str` is a table."""

    rows: tuple[CallCount, ...]
    notes: tuple[str, ...]

    @property
    def planned(self) -> int:
        """The number of calls that ran by plans."""
        return sum(row.calls for row in self.rows if row.plan)

    @property
    def by_library(self) -> int:
        """The number of calls that the library served."""
        return sum(row.calls for row in self.rows if not row.plan)

    def __str__(self) -> str:
        lines = [f"flowccl: {self.planned} calls by plans, {self.by_library} by the library"]
        cells = [_TITLES, *(_cells(row) for row in self.rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(_TITLES))]
        for row in cells if self.rows else []:
            lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _cells(row: CallCount) -> tuple[str, ...]:
    done = row.calls - row.unfinished
    each = f"{1e6 * row.seconds / done:.0f} us" if done else "-"
    amount = (format_bytes(row.bytes) if row.bytes else "-", f"{1e3 * row.seconds:.1f} ms", each)
    return (row.collective, str(row.ranks), row.device, row.served_by, str(row.calls), *amount)


def report() -> Report:
    """Return which calls of this process ran by plans and which by the library; `print` shows a table.

    Times are from the call to its end. On GPUs they end when the call has been enqueued; so do those of the library on
    the CPU, unless FLOWCCL_LOG=info.
    """
    rows = sorted(CALLS.rows.values(), key=lambda row: (not row.plan, row.collective, row.ranks, row.served_by))
    return Report(tuple(rows), tuple(CALLS.notes))
