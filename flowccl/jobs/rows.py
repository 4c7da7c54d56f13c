"""A row of an audit: a kind of calls, what it took, and what it could take."""

from dataclasses import dataclass

from flowccl.jobs.evaluate import CallBound, CallPlan
from flowccl.jobs.kinds import Kind


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A kind of calls: what it took, what NCCL's model, the best plan and the hardware say, all in us.

    `bound` is that of a call which has the machine to itself. `together` is the bound of all calls of disjoint groups
    that run at the same time, and `window_us` what these took. `calls_per_step` may be a fraction.
    """

    kind: Kind
    gpus: tuple[int, ...]
    calls_per_step: float
    share: float
    measured_us: float | None
    waiting_us: float
    library_us: float | None
    bound: CallBound | None
    plan: CallPlan | None = None
    groups_together: int = 1
    together: CallBound | None = None
    window_us: float = 0.0

    @property
    def bound_us(self) -> float | None:
        """What the hardware allows: the bound alone, or the part of the common bound of simultaneous calls."""
        if self.bound is None:
            return None
        if self.together is None or self.measured_us is None or not self.window_us:
            return self.bound.us
        return max(self.bound.us, self.together.us * self.measured_us / self.window_us)

    @property
    def ratio(self) -> float | None:
        """Measured / bound."""
        bound = self.bound_us
        return None if not bound or self.measured_us is None else self.measured_us / bound

    @property
    def bottleneck(self) -> str:
        """The link that decides the bound, in words."""
        chosen = self.together if self.together is not None else self.bound
        return "" if chosen is None else chosen.bottleneck

    @property
    def possible_us(self) -> float:
        """What the hardware allows to save, in us per step."""
        if self.bound_us is None or self.measured_us is None:
            return 0.0
        return max(self.measured_us - self.bound_us, 0.0) * self.calls_per_step

    @property
    def saved_us(self) -> float | None:
        """What the plan saves, in us per step; negative where the plan is slower. None without both times."""
        if self.plan is None or self.plan.us is None or self.measured_us is None:
            return None
        return (self.measured_us - self.plan.us) * self.calls_per_step

    @property
    def gain(self) -> float | None:
        """The part of the measured time that the plan saves."""
        if self.plan is None or self.plan.us is None or not self.measured_us:
            return None
        return 1 - self.plan.us / self.measured_us

    @property
    def below_bound(self) -> bool:
        """Whether the call was faster than the machine allows: the log and the machine do not fit.

        In a class of several sizes, the smallest one could be as fast.
        """
        if self.bound is None or self.measured_us is None:
            return False
        least = self.kind.least_bytes / max(self.kind.size_bytes, 1)
        return self.measured_us < self.bound.us * least * (1 - 1e-9)
