"""What served the calls of this process: counts and times of each kind of call, for the log and for `report`."""

import logging
import os
from dataclasses import dataclass
from time import perf_counter

log = logging.getLogger("flowccl.torch")
LIBRARY = "library"


@dataclass(slots=True)
class CallCount:
    """Calls of one kind: the collective, the ranks and the device, and the plan or library that served them.

    `reason` is that of the first call. `seconds` is the time from the call to its completion; on GPUs and for
    point-to-point messages, only the time until the call has been enqueued. `unfinished` calls are not part of it.
    """

    collective: str
    ranks: int
    device: str
    served_by: str
    plan: bool
    reason: str
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    unfinished: int = 0

    @property
    def words(self) -> str:
        """The kind of call and what served it, in words."""
        return f"{self.collective} on {self.ranks} ranks ({self.device}): {self.served_by}"

    def begin(self, size_bytes: int) -> float:
        """Count a call that begins now; return the time, for `end`."""
        self.calls += 1
        self.bytes += size_bytes
        self.unfinished += 1
        return perf_counter()

    def end(self, begun: float) -> float:
        """Count the time of a call; return its seconds."""
        seconds = perf_counter() - begun
        self.seconds += seconds
        self.unfinished -= 1
        return seconds


class CallLog:
    """All kinds of calls of this process, in all groups; groups that were destroyed stay in it."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int, str, str], CallCount] = {}
        self.notes: list[str] = []
        self.speaks = True
        self.process = os.getpid()

    def row(self, collective: str, ranks: int, device: str, served_by: str, plan: bool, reason: str) -> CallCount:
        """Return the count of a kind of call; the first one of each kind is logged with its reason."""
        key = (collective, ranks, device, served_by)
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = CallCount(collective, ranks, device, served_by, plan, reason)
            if self.speaks:
                log.info("flowccl: %s (%s)", found.words, reason)
        return found

    def note(self, text: str, level: int = logging.WARNING) -> None:
        """Say something once in this process."""
        if text not in self.notes:
            self.notes.append(text)
            log.log(level, "flowccl: %s", text)

    def times_matter(self) -> bool:
        """Whether the completion of the library's calls is worth a callback: somebody reads the log."""
        return log.isEnabledFor(logging.INFO)


CALLS = CallLog()
"""The calls of this process."""
