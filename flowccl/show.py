"""Machines, schedules and results in words."""

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from flowccl.result import Result
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us

if TYPE_CHECKING:
    from flowccl.tenants import TenantsResult


def describe_topology(topology: Topology) -> str:
    """Nodes, links by kind, limits: what a newcomer wants to see first."""
    kinds = Counter(node.kind for node in topology.nodes)
    lines = [
        f"machine      {topology.name}",
        f"nodes        {', '.join(f'{count} {kind}' for kind, count in kinds.items())}",
        f"hosts        {len(topology.hosts)}" if topology.hosts else "hosts        not said",
    ]
    for node in topology.nodes:
        if node.kind != "gpu":
            skills = [name for name in ("stores", "copies", "reduces") if getattr(node, name)]
            crossing = [] if node.stores else [node.crossing]
            room = [] if node.buffer_bytes is None else [f"buffer {format_bytes(node.buffer_bytes)}"]
            lines.append(f"{node.kind:<12} {node.name}: {', '.join(skills + crossing + room) or 'forwards'}")
            if len(lines) > 12:
                lines.append(f"             ... {sum(kinds.values()) - kinds['gpu']} in all")
                break
    classes: Counter[tuple[str, float, float, float]] = Counter()
    for link in topology.links:
        way = f"{topology.nodes[link.src].kind} -> {topology.nodes[link.dst].kind}"
        classes[way, link.bandwidth_GBps, link.latency_us, link.overhead_us] += 1
    lines.append(f"links        {len(topology.links)} directed")
    for (way, bandwidth, latency, overhead), count in sorted(
        classes.items(), key=lambda item: (item[0][0], -item[0][1])
    ):
        held = f", setup {format_us(overhead)}" if overhead else ""
        lines.append(f"             {count:>6} x {way:<16} {format_GBps(bandwidth):>10}, {format_us(latency)}{held}")
    lines += [
        f"limit        {limit.name}: {format_GBps(limit.bandwidth_GBps)} over {len(limit.links)} links"
        for limit in topology.limits[:8]
    ]
    lines.append(f"fingerprint  {topology.fingerprint}")
    return "\n".join(lines)


def describe_schedule(schedule: Schedule) -> str:
    """What it is for, how long it takes, and the busiest links."""
    metrics, demand = measure(schedule), schedule.demand
    lines = [
        f"schedule     {demand.collective}, {format_bytes(demand.size_bytes)}, {demand.pieces} chunks per block",
        f"machine      {schedule.topology.name}, {schedule.topology.num_gpus} gpus",
        f"made by      {schedule.method or 'not said'}",
        f"transfers    {len(schedule)} of {len(demand)} chunks over {len(schedule.routes)} routes",
        f"finish       {format_us(metrics.finish_us)} ({metrics.finish_us:.6g} us)",
        f"algbw        {format_GBps(metrics.algbw_GBps)}",
        f"busbw        {format_GBps(metrics.busbw_GBps)}",
        "busiest links",
    ]
    for link in np.argsort(-metrics.link_use, kind="stable")[:8].tolist():
        lines.append(f"             {metrics.link_use[link]:6.1%}  {schedule.topology.link_name(link)}")
    return "\n".join(lines)


def _epoch_rows(result: Result) -> list[tuple[str, str]]:
    """What a method on a grid of epochs has to say."""
    facts = result.details
    if "epochs" not in facts:
        return []
    length, finish = float(str(facts["epoch_us"])), float(str(facts["grid_finish_us"]))
    gap = float(str(facts["grid_gap"]))
    proof = "fewest on this grid" if gap == 0 else f"gap on the grid {gap:.2%}"
    rows = [("epochs", f"{facts['epochs']} of {length:.6g} us, {finish:.6g} us on the grid; {proof}")]
    if "epochs_bound" in facts:
        rows.append(("at least", f"{facts['epochs_bound']} epochs: {facts['epochs_bound_reason']}"))
    left_shifted = float(str(facts["plan_finish_us"]))
    rows.append(("plan", f"retimed {left_shifted:.6g} us; schedule by the {facts['schedule_by']}"))
    rows.append(("solver", f"{facts['solver_s']} s, {facts['grid_status']}"))
    return rows


def _flow_rows(result: Result) -> list[tuple[str, str]]:
    """What a method that starts from a fluid optimum has to say."""
    facts = result.details
    if "pipeline_loss" not in facts:
        return []
    rows = []
    if "optimum_us" in facts:
        rows.append(("optimum", f"{float(str(facts['optimum_us'])):.6g} us as a flow, by bandwidths alone"))
    busiest, loss = float(str(facts["busiest_link_us"])), float(str(facts["pipeline_loss"]))
    chunks = f", {float(str(facts['chunk_loss'])):.2%} for whole chunks" if "chunk_loss" in facts else ""
    rows.append(("pipeline", f"busiest link {busiest:.6g} us{chunks}; {loss:.2%} lost in the pipeline"))
    return rows


def _sketch_rows(result: Result) -> list[tuple[str, str]]:
    """Connections of a sketch that the machine does not have."""
    changes = result.details.get("relayed")
    if not isinstance(changes, list):
        return []
    more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
    return [("relayed", f"the machine lacks what the sketch names: {', '.join(changes[:3])}{more}")]


def describe_result(result: Result, out: str | None = None) -> str:
    """The table that `synth` prints."""
    demand, metrics = result.schedule.demand, result.metrics
    share = "this is optimal" if result.status == "optimal" else f"{result.gap:.2%} above the floor"
    rows = [
        ("machine", f"{result.schedule.topology.name}, {result.schedule.topology.num_gpus} gpus"),
        ("collective", f"{demand.collective}, {format_bytes(demand.size_bytes)}, {demand.pieces} chunks per block"),
        ("method", f"{result.schedule.method}, seed {result.seed}"),
        ("finish", f"{format_us(metrics.finish_us)} ({metrics.finish_us:.6g} us)"),
        ("lower bound", f"{format_us(result.bound.us)} ({result.bound.us:.6g} us)"),
        ("gap", share),
        ("why", result.bound.witness),
        *_epoch_rows(result),
        *_flow_rows(result),
        *_sketch_rows(result),
        ("algbw", format_GBps(metrics.algbw_GBps)),
        ("busbw", format_GBps(metrics.busbw_GBps)),
        ("transfers", f"{len(result.schedule)}, verified"),
        ("synthesis", f"{result.synthesis_s:.2f} s, {result.peak_memory_MB:.0f} MB"),
    ]
    if result.interrupted:
        rows.append(("stopped", "by you; this is the best so far"))
    if out is not None:
        rows.append(("written", out))
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def describe_tenants(tenants: "TenantsResult", out: str | None = None) -> str:
    """The result of several tenants, with a line for each."""
    lines = [describe_result(tenants.result, out), ""]
    width = max(len(tenant.name) for tenant in tenants.tenants)
    for tenant in tenants.tenants:
        finish, floor = (format_us(part[tenant.name]) for part in (tenants.finish_us, tenants.lower_bound_us))
        lines.append(f"{tenant.name:<{width}}  weight {tenant.weight:g}, finish {finish}, alone at least {floor}")
    floor = f"proved floor {format_us(tenants.weighted_bound_us)}"
    lines.append(f"weighted sum of finishes {format_us(tenants.weighted_sum_us)}, {floor}")
    return "\n".join(lines)
