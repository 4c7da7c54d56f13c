"""What a method is called, where it is, and what it can do."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from flowccl.adapters.simpler import limits_as_switches
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.search.context import Method, SearchContext
from flowccl.search.traits import Traits

_DEFAULT = Traits()
EVERY = ("direct",)  # the loops that all methods run: left-shift, job shop
Reduction = Literal["native", "halves", "one-shot", "none"]


class Constraint(StrEnum):
    """What may constrain transfers beside the links, in the words of error messages."""

    LIMITS = "bandwidth limits that links share"
    CHANGES = "changing bandwidth"
    BUFFERS = "buffer limits"


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """What a method is called, where it is, and what it can do.

    name         the name on the command line
    load         "package.module:function", imported on first use; or the method itself
    summary      one line for --help
    reductions   how reductions are handled: by the method itself ("native"), as a distribution run backwards and an
                 allreduce as two such halves ("halves"), by every destination for itself ("one-shot"), or not at all
                 ("none")
    supports     constraints beyond the links themselves that it respects; for limits, an adapter stands in
    groups       it supports process groups
    late         it supports sources whose data is ready later than time zero; for others, an adapter delays them
    trunks       it lets links between switches carry several transfers at once; for others, an adapter does
    by_rate      it lets transfers share any link by their rates: `auto` runs it on the machine without lanes
    overheads    it decides which chunks travel in one message; for others, an adapter adds the overhead per message
    operations   it uses operations of switches that only runtimes have
    variants     its schedules are a few variants of one plan: for a runtime, one step carries out all of them
    by_orbits    "package.module:function" that makes its schedules for a runtime: it carries them out itself
    reduce_rate  it can be adapted to GPUs that take time to reduce
    allreduce    it is only for reductions with several destinations
    epochs       it works on a grid of epochs and takes the number of chunks as given, 1 by default
    own_chunks   it chooses the number of chunks itself, or takes the one that is given among its options
    fluid        it starts from a fluid optimum: the result says what whole chunks and the pipeline lose against it
    baseline     it is one of the textbook algorithms that comparisons show
    loops        the units of compiled loops that it runs: names of methods that represent them
    useful_chunks  a number of chunks with which it is good, where it is poor with one; `auto` goes there from one
    traits       how `auto` gives it turns
    in_auto      whether `auto` tries it on a problem; None: never
    """

    name: str
    load: str | Method
    summary: str
    reductions: Reduction = "halves"
    supports: frozenset[Constraint] = frozenset()
    groups: bool = True
    late: bool = False
    trunks: bool = False
    by_rate: bool = False
    overheads: bool = False
    operations: bool = False
    variants: bool = False
    by_orbits: str = ""
    reduce_rate: bool = True
    allreduce: bool = False
    epochs: bool = False
    own_chunks: bool = False
    fluid: bool = False
    baseline: bool = False
    loops: tuple[str, ...] = EVERY
    useful_chunks: Callable[[Problem, SearchContext], int] | None = None
    traits: Traits = _DEFAULT
    in_auto: Callable[[Problem], bool] | None = None

    def suits(self, problem: Problem) -> bool:
        """Whether `auto` tries it on a problem; where an adapter stands in for limits, with switches for them."""
        known = Constraint.LIMITS in self.supports
        return self.in_auto is not None and self.in_auto(problem if known else limits_as_switches(problem))

    def check(self, problem: Problem) -> None:
        """Raise DemandError where the machine or the demand has something that the method does not support."""
        topology, demand = problem.topology, problem.demand
        missing = (
            (topology.changes and Constraint.CHANGES not in self.supports, Constraint.CHANGES),
            (topology.has_buffer_limits and Constraint.BUFFERS not in self.supports, Constraint.BUFFERS),
            (demand.group is not None and not self.groups, "process groups"),
            (topology.has_reduce_rate and demand.reduces and not self.reduce_rate, "GPUs that take time to reduce"),
        )
        for is_missing, feature in missing:
            if is_missing:
                raise DemandError(f"method {self.name} does not support {feature}; use greedy or auto")
        if self.allreduce and not problem.is_allreduce:
            what = "reductions with several destinations, such as allreduce"
            raise DemandError(f"method {self.name} is for {what}; got {demand.collective}")
