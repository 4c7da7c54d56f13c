"""Machines, schedules and results as text for people."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flowccl.result import Result
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.faults import Fault, apply_faults
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us
from flowccl.wording import counted, later_than, percent

if TYPE_CHECKING:
    from flowccl.synthesis.compact import CompactResult
    from flowccl.synthesis.tenants import TenantsResult
    from flowccl.synthesis.trade_off import TradeOffPoint


_MOST_LISTED = 8
_LABEL = 17  # width of the first column
_NAMES = {  # kind of node -> singular and plural
    "gpu": ("GPU", "GPUs"),
    "switch": ("switch", "switches"),
    "memory": ("memory", "memories"),
}


def describe_topology(whole: Topology, faults: Sequence[Fault] = ()) -> str:
    """The nodes, the links grouped by kind and bandwidth, and the limits of a machine with these faults."""
    topology = apply_faults(whole, faults)
    kinds = Counter(node.kind for node in topology.nodes)
    lines = [
        f"machine      {topology.name}",
        f"nodes        {', '.join(counted(count, *_NAMES.get(kind, (kind, ''))) for kind, count in kinds.items())}",
        f"hosts        {len(topology.hosts) or 'not given'}",
    ]
    for node in topology.nodes:
        if node.kind != "gpu":
            skills = [name for name in ("stores", "copies", "reduces") if getattr(node, name)]
            crossing = [] if node.stores else [node.crossing]
            buffer = [] if node.buffer_bytes is None else [f"buffer {format_bytes(node.buffer_bytes)}"]
            lines.append(f"{node.kind:<12} {node.name}: {', '.join(skills + crossing + buffer) or 'forwards'}")
            if len(lines) > 12:
                lines.append(f"             ... {sum(kinds.values()) - kinds['gpu']} in total")
                break
    classes: Counter[tuple[str, float, float, float]] = Counter()
    for link in topology.links:
        ends = f"{topology.nodes[link.src].kind} -> {topology.nodes[link.dst].kind}"
        classes[ends, link.bandwidth_GBps, link.latency_us, link.overhead_us] += 1
    lines.append(f"links        {len(topology.links)} directed")
    for (ends, bandwidth, latency, overhead), count in sorted(
        classes.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        extra = f", overhead {format_us(overhead)} per message" if overhead else ""
        cost = f"{format_GBps(bandwidth):>10}, latency {format_us(latency)}{extra}"
        lines.append(f"             {count:>6} x {ends:<16} {cost}")
    lines += [
        f"limit        {limit.name}: {format_GBps(limit.bandwidth_GBps)} over {counted(len(limit.links), 'link')}"
        for limit in topology.limits[:_MOST_LISTED]
    ]
    if len(topology.limits) > _MOST_LISTED:
        lines.append(f"             ... {len(topology.limits)} limits in total")
    lines += _fault_rows(whole, faults)
    lines.append(f"fingerprint  {topology.fingerprint}")
    return "\n".join(lines)


def _fault_rows(whole: Topology, faults: Sequence[Fault]) -> list[str]:
    """One row per link with a fault, with the bandwidth of the whole machine."""
    rows = []
    for fault in faults:
        for link in fault.links:
            before, now = format_GBps(float(whole.link_GBps[link])), fault.bandwidth_GBps
            rate = f"slow, {format_GBps(now)} instead of {before}" if now is not None else f"lost, {before}"
            rows.append(f"{'fault':<12} {whole.link_name(link)}: {rate}")
    return rows


def describe_schedule(schedule: Schedule) -> str:
    """The collective, the completion time and the busiest links of a schedule."""
    metrics, demand = measure(schedule), schedule.demand
    rows = [
        *_problem_rows(schedule),
        ("method", schedule.method or "not given"),
        ("completion time", _exact_us(metrics.finish_us)),
        ("algbw", format_GBps(metrics.algbw_GBps)),
        ("busbw", format_GBps(metrics.busbw_GBps)),
        (
            "transfers",
            f"{len(schedule)} of {counted(len(demand), 'chunk')} over {counted(len(schedule.routes), 'route')}",
        ),
    ]
    lines = [_table(rows), "busiest links"]
    for link in np.argsort(-metrics.link_use, kind="stable")[:_MOST_LISTED].tolist():
        use = f"{100 * metrics.link_use[link]:6.1f} %"
        lines.append(f"{'':<{_LABEL}}{use}  {schedule.topology.link_name(link)}")
    return "\n".join(lines)


def _problem_rows(schedule: Schedule) -> list[tuple[str, str]]:
    """The machine and the collective."""
    demand, topology = schedule.demand, schedule.topology
    pieces = counted(demand.pieces, "chunk")
    return [
        ("machine", f"{topology.name}, {counted(topology.num_gpus, 'GPU')}"),
        ("collective", f"{demand.collective}, {format_bytes(demand.size_bytes)}, {pieces} per block"),
    ]


def _exact_us(us: float) -> str:
    """The time with a readable unit, and with six digits in microseconds if that differs."""
    short, exact = format_us(us), f"{us:.6g} us"
    return short if short == exact else f"{short} ({exact})"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{name:<{_LABEL}}{value}" for name, value in rows)


def _epoch_rows(result: Result) -> list[tuple[str, str]]:
    """The rows of a method on a time grid of epochs."""
    facts = result.details
    if "epochs" not in facts:
        return []
    length, finish = float(str(facts["epoch_us"])), float(str(facts["grid_finish_us"]))
    gap = float(str(facts["grid_gap"]))
    proof = "the fewest possible on this grid" if gap == 0 else f"gap on the grid {percent(gap)}"
    rows = [("epochs", f"{facts['epochs']} of {length:.6g} us, {finish:.6g} us on the grid; {proof}")]
    if "epochs_bound" in facts:
        rows.append(("epochs bound", f"at least {facts['epochs_bound']}: {facts['epochs_bound_reason']}"))
    left_shifted = float(str(facts["plan_finish_us"]))
    rows.append(
        ("plan", f"{left_shifted:.6g} us after the left shift; the schedule is from the {facts['schedule_by']}")
    )
    rows.append(("solver", f"{facts['solver_s']} s, {facts['grid_status']}"))
    return rows


def _step_rows(result: Result) -> list[tuple[str, str]]:
    """The rows of the method after SCCL."""
    facts = result.details
    if "rounds_per_step" not in facts or not isinstance(facts["front"], list):
        return []
    split = str(facts["rounds_per_step"]).strip("[]")
    points = [f"({one['chunks']}, {one['steps']}, {one['rounds']}) {one['finish_us']:.6g} us" for one in facts["front"]]
    rows = [
        (
            "steps",
            f"{facts['steps']}, with rounds {split}: {facts['rounds']} rounds for {facts['chunks']} chunks per block",
        ),
        ("front", f"(chunks, steps, rounds): {', '.join(points)}"),
        ("bounds", f"{facts['steps_bound']}; {facts['rounds_bound']}"),
    ]
    for name in ("infeasible", "undecided"):
        some = facts[name]
        if isinstance(some, list) and some:
            more = f" and {len(some) - 8} more" if len(some) > 8 else ""
            rows.append((name, ("proved: " if name == "infeasible" else "") + ", ".join(some[:8]) + more))
    return rows


def _flow_rows(result: Result) -> list[tuple[str, str]]:
    """The rows of a method that starts from a fluid optimum."""
    facts = result.details
    if "pipeline_loss" not in facts:
        return []
    rows = []
    if "optimum_us" in facts:
        rows.append(("optimum", f"{float(str(facts['optimum_us'])):.6g} us as a fluid flow, by bandwidth alone"))
    busiest, loss = float(str(facts["busiest_link_us"])), float(str(facts["pipeline_loss"]))
    chunks = f", {percent(float(str(facts['chunk_loss'])))} lost to whole chunks" if "chunk_loss" in facts else ""
    rows.append(("pipeline", f"busiest link {busiest:.6g} us{chunks}; {percent(loss)} lost to filling the pipeline"))
    return rows


def _sketch_rows(result: Result) -> list[tuple[str, str]]:
    """The connections of a sketch that the machine does not have."""
    changes = result.details.get("relayed")
    if not isinstance(changes, list):
        return []
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    return [("relayed", f"connections of the sketch without a link on the machine: {', '.join(changes[:3])}{more}")]


def describe_result(result: Result, out: str | None = None) -> str:
    """The table that `synth` prints."""
    metrics = result.metrics
    rows = [
        *_problem_rows(result.schedule),
        ("method", f"{result.schedule.method}, seed {result.seed}"),
        ("completion time", _exact_us(metrics.finish_us)),
        ("lower bound", _exact_us(result.bound.us)),
        ("gap", describe_gap(result.gap, result.status == "optimal")),
        ("bound proof", result.bound.witness),
        *_runtime_rows(result),
        *_epoch_rows(result),
        *_step_rows(result),
        *_flow_rows(result),
        *_sketch_rows(result),
        ("algbw", format_GBps(metrics.algbw_GBps)),
        ("busbw", format_GBps(metrics.busbw_GBps)),
        (
            "transfers",
            f"{len(result.schedule)}, verified; at most {counted(metrics.messages_per_gpu, 'message')} per GPU",
        ),
        ("synthesis", f"{result.synthesis_s:.2f} s, {result.peak_memory_MB:.0f} MB{_why(result)}"),
        *([("memory", str(result.details["memory"]))] if "memory" in result.details else []),
        *_compile_rows(result),
    ]
    if result.interrupted:
        rows.append(("interrupted", "the best schedule so far"))
    if out is not None:
        rows.append(("written to", out))
    return _table(rows)


def _why(result: Result) -> str:
    """The reason for the end of the search."""
    stopped = result.details.get("stopped")
    return f"; {stopped}" if stopped else ""


def describe_methods(result: Result) -> str:
    """The table of methods of `synth --verbose`: chunk counts, steps, seconds and best completion time of each."""
    rows = result.to_json()["methods"]
    lines = ["", f"{'method':<22}{'best us':>12}{'steps':>8}{'seconds':>9}  chunks per block"]
    for row in sorted(rows, key=lambda row: (row["best_us"] is None, row["best_us"] or 0.0)):
        best = "none" if row["best_us"] is None else f"{row['best_us']:.2f}"
        counts = ", ".join(map(str, row["chunks"])) + (f"; {row['ended']}" if row["ended"] else "")
        lines.append(f"{row['method']:<22}{best:>12}{row['steps']:>8}{row['seconds']:>9.2f}  {counts}")
    return "\n".join(lines)


def describe_trade_off(front: "Sequence[TradeOffPoint]", lower_bound_us: float) -> str:
    """The table of `synth --trade-off`."""
    on_runtime = any(point.program_us is not None for point in front)
    head = f"{'messages per GPU':>16}{'chunks':>8}{'chunk':>12}{'transfers':>11}{'schedule us':>13}{'gap':>9}"
    lines = ["", head + (f"{'program us':>12}" if on_runtime else "") + "  method"]
    for point in front:
        row = f"{point.messages_per_gpu:>16}{point.chunks:>8}{format_bytes(point.chunk_bytes):>12}{point.transfers:>11}"
        row += f"{point.finish_us:>13.2f}{percent(point.finish_us / max(lower_bound_us, 1e-9) - 1):>9}"
        row += "" if point.program_us is None else f"{point.program_us:>12.2f}"
        lines.append(f"{row}  {point.method}")
    return "\n".join(lines)


def _runtime_rows(result: Result) -> list[tuple[str, str]]:
    """The program on the runtime that the schedule was made for."""
    if result.lowered is None:
        runtime = result.schedule.runtime
        return [] if runtime is None else [(f"on {runtime.name}", str(result.details.get("program", "no program")))]
    program, loss = result.lowered, result.loss or 0.0
    later = later_than(loss, "the schedule")
    blocks = f"{counted(program.threadblocks, 'threadblock')} per GPU, {format_bytes(program.scratch_bytes)} of scratch"
    return [(f"on {program.runtime}", f"{format_us(program.program_us)}, {later}; {blocks}")]


def _compile_rows(result: Result) -> list[tuple[str, str]]:
    """What was compiled in this run, which happens once per installation."""
    if "compile_s" not in result.details:
        return []
    return [("compiling", f"{result.details['compile_s']} s before the search, once per installation")]


def describe_gap(gap: float, optimal: bool) -> str:
    """The value of the row "gap"."""
    if optimal:
        return "optimal: the completion time equals the lower bound"
    return f"{percent(gap)} above the lower bound"


def describe_compact(result: "CompactResult", out: str | None = None) -> str:
    """The table that `synth` prints for a compact schedule."""
    facts, whole = result.to_json(), result.compact
    group = " x ".join(map(str, whole.group.order))
    more = f", but for {counted(whole.num_exceptions, 'exception')}" if whole.num_exceptions else ""
    pieces = counted(whole.pieces, "chunk")
    rows = [
        ("machine", f"{facts['machine']}, {facts['gpus']} GPUs, symmetric under a group of order {group}{more}"),
        ("collective", f"{whole.collective}, {format_bytes(whole.size_bytes)}, {pieces} per block"),
        ("method", f"symmetric, compact form, seed {result.seed}"),
        ("completion time", _exact_us(whole.finish_us)),
        ("lower bound", _exact_us(result.bound.us)),
        ("gap", describe_gap(result.gap, result.gap <= 0)),
        ("bound proof", result.bound.witness),
        ("algbw", format_GBps(facts["algbw_GBps"])),
        ("busbw", format_GBps(facts["busbw_GBps"])),
        ("transfers", f"{whole.transfers_of_one_source} of gpu0's data, {len(whole)} in total, verified"),
        ("synthesis", f"{result.synthesis_s:.2f} s, {result.peak_memory_MB:.0f} MB"),
        *([] if out is None else [("written to", out)]),
    ]
    return _table(rows)


def describe_tenants(tenants: "TenantsResult", out: str | None = None) -> str:
    """The result of several tenants, with one line per tenant."""
    lines = [describe_result(tenants.result, out), ""]
    width = max(len(tenant.name) for tenant in tenants.tenants)
    for tenant in tenants.tenants:
        finish, bound = (format_us(part[tenant.name]) for part in (tenants.finish_us, tenants.lower_bound_us))
        times = f"completion time {finish}, lower bound alone {bound}"
        lines.append(f"{tenant.name:<{width}}  weight {tenant.weight:g}, {times}")
    total, bound = format_us(tenants.weighted_sum_us), format_us(tenants.weighted_bound_us)
    lines.append(f"weighted sum of completion times {total}, lower bound {bound}")
    return "\n".join(lines)
