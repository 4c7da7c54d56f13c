"""The registry: methods by name, adapted to what they do not support themselves. entries.py has the table."""

from collections.abc import Callable, Iterator
from functools import cache

from flowccl import by_name
from flowccl.adapters.groups import with_groups
from flowccl.adapters.reduction import one_shot, with_reductions
from flowccl.adapters.simpler import only_improvements, with_limits, with_message_overheads, with_reduce_rate
from flowccl.adapters.trunks import with_trunks
from flowccl.errors import InputError
from flowccl.methods.entries import METHODS
from flowccl.methods.method_info import Constraint, MethodInfo
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology


def register(info: MethodInfo) -> None:
    """Add a method, for the command line, `synthesize` and `auto`."""
    if info.name in REGISTRY or info.name == "auto":
        raise InputError(f"method {info.name!r} is registered already; choose another name")
    REGISTRY[info.name] = info


def info_of(name: str) -> MethodInfo:
    """The entry of a method; InputError where there is none of this name."""
    if name not in REGISTRY:
        from difflib import get_close_matches

        near = get_close_matches(name, ["auto", *REGISTRY], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"the methods are auto, {', '.join(REGISTRY)}"
        raise InputError(f"unknown method {name!r}; {hint}")
    return REGISTRY[name]


@cache
def load_method(name: str, *, every: bool = False) -> Method:
    """The method of this name, adapted to everything that it does not support itself.

    It yields only improvements, or `every` schedule that it finds.
    """
    info = info_of(name)
    method = with_groups(_with_reductions(info), late=info.late, groups=info.groups)
    adapted = with_reduce_rate(method if info.overheads else with_message_overheads(method))
    adapted = adapted if info.trunks else with_trunks(adapted)
    adapted = adapted if Constraint.LIMITS in info.supports else with_limits(adapted, _is_valid)
    adapted = adapted if every else only_improvements(adapted)

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        info.check(problem)
        yield from adapted(problem, context)

    return run


def on_the_machine(methods: dict[str, Method], topology: Topology) -> dict[str, Method]:
    """The methods for a search on lanes: those that share links plan on the machine itself."""

    def moved(method: Method) -> Method:
        return lambda problem, context: method(Problem(topology, problem.demand), context)

    return {name: moved(method) if info_of(name).by_rate else method for name, method in methods.items()}


def methods_where(condition: Callable[[MethodInfo], bool]) -> list[str]:
    """Names of the methods whose entry meets a condition, in the order of the registry."""
    return [name for name, info in REGISTRY.items() if condition(info)]


def _is_valid(schedule: Schedule) -> bool:
    from flowccl.verifier.verify import verify

    return not verify(schedule)


def _with_reductions(info: MethodInfo) -> Method:
    method = _imported(info)
    if info.reductions == "one-shot":
        return one_shot(method)
    if info.reductions == "halves":
        return with_reductions(method)
    return method


def _imported(info: MethodInfo) -> Method:
    """The method, imported when it first runs: numba takes half a second to load."""
    if not isinstance(info.load, str):
        return info.load
    name = info.load

    def run(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
        method: Method = by_name.load(name)
        return method(problem, context)

    return run


REGISTRY: dict[str, MethodInfo] = {info.name: info for info in METHODS}
"""Name on the command line -> entry."""
