"""Incumbents: the best schedules found so far, which concurrent searches share."""

from dataclasses import dataclass, field

from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule


@dataclass
class Incumbents:
    """The best completion time, the lower bound, the best schedule of each problem, and hints that work on it.

    What searches report during a round becomes visible to the others with `publish`, so that the result does not
    depend on which thread was faster.
    """

    best_ps: float = float("inf")
    bound_ps: float = 0.0
    schedules: dict[Problem, Schedule] = field(default_factory=dict)
    hints: dict[str, object] = field(default_factory=dict)
    reported: list[Schedule] = field(default_factory=list)
    reported_hints: list[tuple[str, object, int]] = field(default_factory=list)
    proved: tuple[int, str] = (0, "")  # the best lower bound that a method proved, in ps, and its witness
    inner: "Incumbents | None" = None  # those of a search on another machine, for this one

    def report(self, schedule: Schedule) -> None:
        """Let other searches on the same problem start from this schedule, from the next round on."""
        self.reported.append(schedule)

    def report_hint(self, key: str, value: object, finish_ps: int) -> None:
        """Let other searches use a setting that led to this completion time, from the next round on."""
        self.reported_hints.append((key, value, finish_ps))

    def report_bound(self, ps: int, witness: str) -> None:
        """Keep a lower bound that a method proved for the problem, where it is the best one."""
        self.proved = max(self.proved, (ps, witness))

    def publish(self) -> None:
        """Make reports visible: the best schedule of each problem, and for each key the hint of the best schedule."""
        if self.inner is not None:
            self.inner.publish()
        hints = [self.reported_hints.pop() for _ in range(len(self.reported_hints))]  # threads may append meanwhile
        for key, value, _ in sorted(hints, key=lambda hint: (-hint[2], repr(hint[1]))):
            self.hints[key] = value
        reported = [self.reported.pop() for _ in range(len(self.reported))]
        for schedule in sorted(reported, key=lambda one: (one.finish_ps, one.method, int(one.start_ps.sum()))):
            problem = Problem(schedule.topology, schedule.demand)
            if problem not in self.schedules or schedule.finish_ps < self.schedules[problem].finish_ps:
                self.schedules[problem] = schedule
