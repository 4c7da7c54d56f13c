"""Words for messages and tables: counts with the right plural, shortened lists, percentages."""

from collections.abc import Iterable

_MOST_LISTED = 8


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun: "1 chunk", "2 chunks"."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def listed(names: Iterable[str]) -> str:
    """The names, separated by commas; of a long list, the first names and the count."""
    every = list(names)
    shown = ", ".join(every[:_MOST_LISTED])
    return shown if len(every) <= _MOST_LISTED else f"{shown}, ... ({len(every)} in total)"


def later_than(fraction: float, what: str) -> str:
    """0.05 -> "5.00 % later than ..."; -0.05 -> "5.00 % earlier than ..."; 0.00001 -> "no later than ..."."""
    if round(100 * fraction, 2) == 0:
        return f"no later than {what}"
    return f"{percent(abs(fraction))} {'later' if fraction > 0 else 'earlier'} than {what}"


def percent(fraction: float) -> str:
    """0.0009 -> "0.09 %"; what rounds to zero has no sign."""
    return f"{round(100 * fraction, 2) + 0.0:.2f} %"
