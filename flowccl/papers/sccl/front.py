"""The Pareto front of steps and rounds per chunk, by the loop of SCCL's Algorithm 1.

For S from the least number of steps upwards, the instances with at most S + k rounds (or as many as one chunk per block
needs, where that is more) are decided in ascending order of rounds per chunk R / C, until one has a plan. The loop ends
when R / C is the lower bound. Instances that need as many rounds per chunk as a plan with fewer steps are left out:
they are not on the front.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from flowccl.demand.demand import Demand
from flowccl.demand.division import divided
from flowccl.errors import InputError
from flowccl.papers.sccl.decide import decide
from flowccl.papers.sccl.graph import LeastRounds
from flowccl.papers.sccl.options import ScclOptions
from flowccl.papers.sccl.phases import Phase, phases_of, schedule_of
from flowccl.papers.sccl.program import StepPlan
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology


@dataclass(frozen=True)
class Instance:
    """Chunks per block, steps and rounds of the whole collective."""

    chunks: int
    steps: int
    rounds: int

    def __str__(self) -> str:
        return f"({self.chunks}, {self.steps}, {self.rounds})"


@dataclass(frozen=True, eq=False)
class Found:
    """An instance that was decided: with a schedule, proved infeasible, or neither in time."""

    instance: Instance
    schedule: Schedule | None = None
    rounds_per_step: tuple[int, ...] = ()
    infeasible: bool = False


class StepSearch:
    """Decides instances of a demand with one chunk per block; an allreduce has two phases of half the steps each."""

    def __init__(self, topology: Topology, demand: Demand, options: ScclOptions, context: SearchContext) -> None:
        self.topology, self.demand, self.options, self.context = topology, demand, options, context
        phases = phases_of(topology, demand)
        self.parts = len(phases)
        self.least_steps, self.far = max(phase.graph.least_steps(phase.demand) for phase in phases)
        bounds = [phase.graph.least_rounds(phase.demand) for phase in phases]
        self.least_rounds: LeastRounds = max(bounds, key=lambda bound: bound.ratio)
        self._check()

    def run(self) -> Iterator[Found]:
        """Yield the decided instances, in the order of the loop."""
        best: Fraction | None = None
        for steps in self._steps():
            for ratio, chunks, rounds in self._undecided(steps, best):
                if self.context.budget.left_s <= 0 or self.context.budget.should_stop():
                    return
                found = self._decide(chunks, steps, rounds)
                yield found
                if found.schedule is not None:
                    best = ratio
                    break
            if best == self.least_rounds.ratio:
                return

    def _steps(self) -> Iterator[int]:
        """Steps of one phase."""
        if self.options.steps is not None:
            yield self.options.steps // self.parts
            return
        steps, last = self.least_steps, self.options.rounds
        while last is None or steps <= last // self.parts:
            yield steps
            steps += 1

    def _undecided(self, steps: int, best: Fraction | None) -> list[tuple[Fraction, int, int]]:
        """(R / C, C, R) of one phase in ascending order; of equal ratios only the least C."""
        given = self.options.rounds
        most = max(steps + self.options.extra_rounds, ceil(self.least_rounds.ratio))
        rows: dict[Fraction, tuple[int, int]] = {}
        smallest = int(self.demand.chunk_bytes.min())
        for rounds in range(steps, most + 1) if given is None else (given // self.parts,):
            most_chunks = min(int(rounds / self.least_rounds.ratio), smallest)
            wanted = self.options.chunks
            for chunks in range(1, most_chunks + 1) if wanted is None else (wanted,):
                ratio = Fraction(rounds, chunks)
                if ratio >= self.least_rounds.ratio and (best is None or ratio < best):
                    rows.setdefault(ratio, (chunks, rounds))
        return [(ratio, *rows[ratio]) for ratio in sorted(rows)]

    def _decide(self, chunks: int, steps: int, rounds: int) -> Found:
        """Decide an instance, given by the steps and rounds of one phase."""
        instance = Instance(chunks, steps * self.parts, rounds * self.parts)
        demand = divided(self.demand, chunks)
        phases: list[Phase] = phases_of(self.topology, demand)
        plans: list[StepPlan] = []
        for phase in phases:
            decision = decide(phase.graph, phase.demand, steps, rounds, self.options, self.context)
            if decision.plan is None:
                return Found(instance, infeasible=decision.infeasible)
            plans.append(decision.plan)
        per_step = plans[0].rounds[::-1] if phases[0].inverted is not None else plans[0].rounds
        per_step += plans[1].rounds if len(plans) > 1 else ()
        return Found(instance, schedule_of(self.topology, demand, phases, plans), per_step)

    def _check(self) -> None:
        """Refuse given steps and rounds that cannot be: below a lower bound, or odd for two phases."""
        options, parts = self.options, self.parts
        for name, value in (("steps", options.steps), ("rounds", options.rounds)):
            if value is not None and value % parts:
                halves = "a reduce_scatter and an allgather with half of the steps and rounds each"
                raise InputError(f"sccl: {self.demand.collective} is {halves}; give an even number of {name}")
        least_steps = self.least_steps * parts
        twice = " in each of two phases" if parts > 1 else ""
        for name, value in (("steps", options.steps), ("rounds", options.rounds)):
            if value is not None and value < least_steps:
                raise InputError(f"sccl: {name} must be at least {least_steps}, got {value}: {self.far}{twice}")
        chunks = options.chunks or 1
        least = ceil(self.least_rounds.ratio * chunks) * parts
        if options.rounds is not None and options.rounds < least:
            least_words = f"rounds must be at least {least} with chunks per block: {chunks}, got {options.rounds}"
            raise InputError(f"sccl: {least_words}; {self.least_rounds}{twice}")
        smallest = int(self.demand.chunk_bytes.min())
        if chunks > smallest:
            raise InputError(f"sccl: a block of {smallest} bytes cannot be divided into {chunks} chunks")
