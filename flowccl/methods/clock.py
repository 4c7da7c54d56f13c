"""One clock for a whole synthesis: how long it may take, when it is good enough, who wants it to stop."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology


@dataclass
class Clock:
    """Time limit in seconds, number of steps, the finish that is good enough, and a question asked often.

    `best_ps` is the finish of the best schedule so far, `floor_ps` the lower bound, `good_ps`
    the finish at which to stop, the bound times (1 + gap). `steps` bounds the runs of a search as well, for results
    that do not depend on the speed of the computer. `shared` is for searches to tell each other what works, `told` are
    their best schedules. `options` are those of the method; what a method has to say beside its schedules goes to
    `notes`.
    """

    time_limit_s: float
    seed: int = 0
    steps: int | None = None
    good_ps: float = 0.0
    bound_ps: float = 0.0
    best_ps: float = float("inf")
    should_stop: Callable[[], bool] = lambda: False
    started: float = field(default_factory=time.monotonic)
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)
    shared: dict[str, object] = field(default_factory=dict)
    told: dict[tuple[Topology, Demand], Schedule] = field(default_factory=dict)
    heard: list[Schedule] = field(default_factory=list)
    hints: list[tuple[str, object, int]] = field(default_factory=list)

    def share(self, what: str, value: object, finish_ps: int) -> None:
        """Let other searches know what gave such a finish, once this step is over."""
        self.hints.append((what, value, finish_ps))

    def tell(self, schedule: Schedule) -> None:
        """Let other searches on the same problem start from this schedule, once this step is over."""
        self.heard.append(schedule)

    def generate_serial(self) -> None:
        """What was told counts from now on: of each problem the best schedule, of each hint that of the best finish."""
        hints = [self.hints.pop() for _ in range(len(self.hints))]  # one by one: others may be added meanwhile
        for what, value, _ in sorted(hints, key=lambda hint: (-hint[2], repr(hint[1]))):
            self.shared[what] = value
        heard = [self.heard.pop() for _ in range(len(self.heard))]
        for schedule in sorted(heard, key=lambda heard: (heard.finish_ps, heard.method, heard.start_ps.sum())):
            problem = (schedule.topology, schedule.demand)
            if problem not in self.told or schedule.finish_ps < self.told[problem].finish_ps:
                self.told[problem] = schedule

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.time_limit_s - self.elapsed_s

    def over(self, finish_ps: float = float("inf")) -> bool:
        """Whether to stop with a schedule of this finish in hand."""
        return finish_ps <= self.good_ps or self.left_s <= 0 or self.should_stop()
