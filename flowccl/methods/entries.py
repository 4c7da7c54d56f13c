"""The table of methods: one `MethodInfo` each. Methods are imported when they are first used.

To add a method, write its module, add one entry here (or call `register` from your own code) and write a test:
CONTRIBUTING.md walks through it.
"""

from functools import partial

from flowccl.methods import suitability
from flowccl.methods.method_info import EVERY, Constraint, MethodInfo
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.search.traits import Traits


def _useful_for_hierarchy(problem: Problem, context: SearchContext, *, halves: bool = False) -> int:
    from flowccl.methods.hierarchical.method import useful_chunks

    return useful_chunks(problem, context, halves=halves)


def _useful_for_trees(problem: Problem, context: SearchContext) -> int:
    from flowccl.methods.rates.method import useful_chunks

    return useful_chunks(problem)


def _useful_for_paths(problem: Problem, context: SearchContext) -> int:
    from flowccl.methods.rates.paths import useful_chunks

    return useful_chunks(problem)


def _useful_for_waves(problem: Problem, context: SearchContext) -> int:
    from flowccl.methods.waves import useful_chunks

    return useful_chunks(problem)


_ONE_SCHEDULE = Traits(one_schedule=True, first_step_work=0.2)  # textbook algorithms, quickly laid out
_ALL = frozenset(Constraint)
_NOT_LIMITS = _ALL - {Constraint.LIMITS}

METHODS = (
    MethodInfo(
        name="nvls",
        load="flowccl.methods.nvls:nvls",
        summary="operations of the switches of hosts (NVLS), for a runtime that has them",
        reductions="native",
        overheads=True,
        groups=False,
        trunks=True,
        operations=True,
        useful_chunks=lambda problem, context: 8,  # with fewer, hosts wait for each other
        traits=Traits(begins_early=True, one_schedule=True),
        in_auto=suitability.has_operations_of_switches,
    ),
    MethodInfo(
        name="aggregation",
        load="flowccl.methods.aggregation:aggregation",
        summary="few messages: relays collect what a host sends to another host",
        overheads=True,
        groups=False,
        trunks=True,
        variants=True,
        traits=Traits(begins_early=True, one_schedule=True),
        in_auto=suitability.suits_aggregation,
    ),
    MethodInfo(
        name="in-network",
        load="flowccl.methods.in_network:in_network",
        summary="allreduce inside a switch that reduces and multicasts (NVLS, SHARP)",
        reductions="native",
        supports=frozenset({Constraint.BUFFERS}),
        traits=Traits(begins_early=True),
        in_auto=suitability.has_reducing_switch,
    ),
    MethodInfo(
        name="hierarchical",
        load="flowccl.methods.hierarchical:hierarchical",
        summary="trees over the levels of the machine: hosts, racks; gateways share the load",
        reductions="native",
        trunks=True,
        loops=(*EVERY, "hierarchical"),
        useful_chunks=_useful_for_hierarchy,
        traits=Traits(one_schedule=True, begins_early=True, quick_start=True, unicast_work=2.0, delivery_s=6e-6),
        in_auto=suitability.suits_hierarchy,
    ),
    MethodInfo(
        name="hierarchical-halves",
        load="flowccl.methods.hierarchical:hierarchical_halves",
        summary="allreduce: a reduce-scatter and an allgather, both along trees over the levels of the machine",
        reductions="native",
        allreduce=True,
        trunks=True,
        loops=(*EVERY, "hierarchical"),
        useful_chunks=partial(_useful_for_hierarchy, halves=True),
        traits=Traits(one_schedule=True, begins_early=True, quick_start=True, delivery_s=6e-6),
        in_auto=suitability.suits_hierarchical_halves,
    ),
    MethodInfo(
        name="packed-trees",
        load="flowccl.methods.rates:packed_trees",
        summary="trees at the rates of a linear program over links and limits, for data that all GPUs receive",
        reductions="native",
        supports=frozenset({Constraint.LIMITS}),
        trunks=True,
        by_rate=True,
        loops=(*EVERY, "packed-trees"),
        useful_chunks=_useful_for_trees,
        traits=Traits(begins_early=True, one_schedule=True, delivery_s=5e-6),
        in_auto=suitability.suits_packed_trees,
    ),
    MethodInfo(
        name="packed-paths",
        load="flowccl.methods.rates:packed_paths",
        summary="alltoall on paths at the rates of a linear program over links and limits",
        reductions="none",
        supports=frozenset({Constraint.LIMITS}),
        trunks=True,
        by_rate=True,
        loops=(*EVERY, "packed-paths"),
        useful_chunks=_useful_for_paths,
        traits=Traits(begins_early=True, one_schedule=True, delivery_s=5e-5),
        in_auto=suitability.suits_packed_paths,
    ),
    MethodInfo(
        name="greedy",
        load="flowccl.methods.greedy:greedy",
        summary="list scheduling in continuous time, with restarts",
        supports=_ALL,
        late=True,
        loops=(*EVERY, "greedy"),
        traits=Traits(reports_after_round=True, grows=True),
        in_auto=suitability.is_searchable,
    ),
    MethodInfo(
        name="taccl-quick",
        load="flowccl.papers.taccl.stages:taccl_quick",
        summary="TACCL's three stages without integer programs",
        reductions="native",
        supports=frozenset({Constraint.LIMITS, Constraint.CHANGES}),
        overheads=True,
        loops=(*EVERY, "taccl"),
        in_auto=suitability.has_message_overheads,
    ),
    MethodInfo(
        name="reroute",
        load="flowccl.methods.reroute:reroute",
        summary="rip-up and reroute, then job-shop scheduling",
        loops=(*EVERY, "reroute"),
        traits=Traits(reports_after_round=True, quick_start=True, unicast_work=3.0, unicast_grows=True),
        in_auto=suitability.is_plain_search,
    ),
    MethodInfo(
        name="lns",
        load="flowccl.methods.lns:lns",
        summary="large-neighbourhood search: remove chunks from the timetable and insert them again",
        loops=(*EVERY, "lns"),
        traits=Traits(first_step_work=3.0, improves_slowly=True, powers_of_two=True, reports_after_round=True),
        in_auto=suitability.is_plain_search,
    ),
    MethodInfo(
        name="symmetric",
        load="flowccl.methods.symmetric:symmetric",
        summary="symmetric schedule from one source, on machines that look the same from every GPU",
        by_orbits="flowccl.methods.symmetric.on_runtimes:symmetric_on_runtime",
        fluid=True,
        loops=(*EVERY, "symmetric"),
        traits=Traits(one_schedule=True, carried_s=5e-6),
        in_auto=suitability.is_large_and_regular,
    ),
    MethodInfo(
        name="ring",
        load="flowccl.methods.baselines:ring",
        summary="baseline: chunks travel around a ring of all GPUs, in both directions or in one",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        useful_chunks=lambda problem, context: 8,  # with fewer, GPUs wait for the latency of slow hops
        traits=Traits(one_schedule=True, begins_early=True),
        in_auto=suitability.suits_ring,
    ),
    MethodInfo(
        name="multi-ring",
        load="flowccl.methods.cluster_baselines:multi_ring",
        summary="baseline: as many rings as rails, in both directions",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        traits=_ONE_SCHEDULE,
    ),
    MethodInfo(
        name="double-binary-tree",
        load="flowccl.methods.cluster_baselines:double_binary_tree",
        summary="baseline: two binary trees of hosts, chains inside hosts",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        traits=_ONE_SCHEDULE,
    ),
    MethodInfo(
        name="recursive-doubling",
        load="flowccl.methods.baselines:recursive_doubling",
        summary="baseline: in step k, ranks that differ in bit k exchange what they have",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        traits=_ONE_SCHEDULE,
    ),
    MethodInfo(
        name="direct",
        load="flowccl.methods.baselines:direct",
        summary="baseline: every source sends to every destination itself",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        traits=_ONE_SCHEDULE,
        in_auto=suitability.suits_baselines,
    ),
    MethodInfo(
        name="tree",
        load="flowccl.methods.baselines:tree",
        summary="baseline: a binary tree from every source",
        supports=_NOT_LIMITS,
        groups=False,
        baseline=True,
        traits=_ONE_SCHEDULE,
    ),
    MethodInfo(
        name="justify",
        load="flowccl.methods.justification:justify",
        summary="schedules of other methods, justified to the right and to the left, with noise",
        reductions="native",
        supports=frozenset({Constraint.LIMITS}),
        reduce_rate=False,
        loops=(*EVERY, "hierarchical"),
        traits=Traits(improves_slowly=True, continues_others=True, reports_after_round=True),
        in_auto=suitability.suits_justification,
    ),
    MethodInfo(
        name="waves",
        load="flowccl.methods.waves:waves",
        summary="allreduce: schedules of other methods in smaller chunks, which follow each other in waves",
        reductions="native",
        supports=frozenset({Constraint.LIMITS}),
        reduce_rate=False,
        allreduce=True,
        loops=EVERY,
        useful_chunks=_useful_for_waves,
        traits=Traits(begins_early=True, improves_slowly=True, continues_others=True, reports_after_round=True),
        in_auto=suitability.suits_waves,
    ),
    MethodInfo(
        name="tree-exchange",
        load="flowccl.methods.tree_exchange:tree_exchange",
        summary="allreduce over direct links: trees to several roots, which exchange by recursive doubling",
        reductions="native",
        reduce_rate=False,
        allreduce=True,
        loops=(*EVERY, "hierarchical", "tree-exchange"),
        in_auto=suitability.suits_tree_exchange,
    ),
    MethodInfo(
        name="staged-exchange",
        load="flowccl.methods.staged_exchange:staged_exchange",
        summary="allreduce of small sizes: staged exchange, from one-shot to recursive doubling",
        reductions="native",
        supports=frozenset({Constraint.BUFFERS}),
        reduce_rate=False,
        in_auto=suitability.suits_staged_exchange,
    ),
    MethodInfo(
        name="one-shot",
        load="flowccl.methods.one_shot:contributions_to_all",
        summary="allreduce of tiny sizes: every destination receives all contributions and reduces them itself",
        reductions="one-shot",
        supports=_ALL,
        late=True,
        allreduce=True,
        loops=(*EVERY, "greedy"),
        in_auto=suitability.suits_one_shot,
    ),
    MethodInfo(
        name="milp",
        load="flowccl.papers.teccl.method:milp",
        summary="TE-CCL's mixed-integer program on epochs, with copies",
        supports=frozenset({Constraint.LIMITS, Constraint.BUFFERS}),
        epochs=True,
        loops=(*EVERY, "greedy", "reroute"),
    ),
    MethodInfo(
        name="lp",
        load="flowccl.papers.teccl.method:lp",
        summary="TE-CCL's linear program on epochs, for collectives without copies",
        supports=frozenset({Constraint.LIMITS, Constraint.BUFFERS}),
        epochs=True,
        loops=(*EVERY, "greedy", "reroute"),
    ),
    MethodInfo(
        name="astar",
        load="flowccl.papers.teccl.astar:astar",
        summary="TE-CCL's A* rounds on epochs",
        supports=frozenset({Constraint.LIMITS, Constraint.BUFFERS}),
        epochs=True,
        loops=(*EVERY, "greedy", "reroute"),
    ),
    MethodInfo(
        name="taccl",
        load="flowccl.papers.taccl.stages:taccl",
        summary="TACCL: routing, ordering, contiguity, guided by a sketch",
        reductions="native",
        supports=frozenset({Constraint.LIMITS, Constraint.CHANGES}),
        overheads=True,
        loops=(*EVERY, "taccl"),
        traits=Traits(slow_second_step=True),
    ),
    MethodInfo(
        name="sccl",
        load="flowccl.papers.sccl:sccl",
        summary="SCCL: least steps and rounds, the Pareto front, infeasibility proved",
        reductions="native",
        supports=frozenset({Constraint.LIMITS}),
        own_chunks=True,
    ),
    MethodInfo(
        name="fluid",
        load="flowccl.papers.fluid.method:fluid",
        summary="whole chunks along the flow of the fluid optimum",
        supports=frozenset({Constraint.LIMITS}),
        fluid=True,
        loops=(*EVERY, "fluid"),
    ),
)
