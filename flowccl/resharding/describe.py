"""Plans in words: the table that `synth` prints, and that of `compare`."""

from flowccl.resharding.planning import ReshardResult
from flowccl.result import Result
from flowccl.units import format_bytes, format_GBps, format_us
from flowccl.wording import counted, percent

_LABEL = 17  # width of the first column, as in the tables of other collectives


def describe_reshard(found: ReshardResult, out: str | None = None) -> str:
    """The table that `synth` prints for a resharding."""
    plan, result = found.plan, found.result
    schedule, topology, facts = result.schedule, result.schedule.topology, plan.traffic.facts
    ends = f"{counted(len(plan.source.ranks), 'rank')} to {counted(len(plan.target.ranks), 'rank')}"
    rows = [
        ("machine", f"{topology.name}, {counted(topology.num_gpus, 'GPU')}"),
        ("collective", f"reshard, {format_bytes(facts['bytes'])} in {counted(facts['tensors'], 'tensor')}, {ends}"),
        ("demand", f"{format_bytes(facts['copied_bytes'])} to deliver, {_classes(facts['classes'])}"),
        ("method", f"{schedule.method}, seed {result.seed}"),
        ("completion time", f"{format_us(found.finish_us)} ({found.finish_us:.6g} us)"),
        ("lower bound", f"{format_us(result.bound.us)} ({result.bound.us:.6g} us)"),
        ("gap", _gap(found)),
        ("bound proof", result.bound.witness),
        ("algbw", format_GBps(schedule.demand.size_bytes / max(found.finish_us, 1e-9) / 1000)),
        ("transfers", f"{len(schedule)} of {counted(len(schedule.demand), 'chunk')}, verified"),
        ("memory", _memory(found)),
        *_program(result),
        ("synthesis", f"{result.synthesis_s:.2f} s, {result.peak_memory_MB:.0f} MB"),
        ("fingerprints", f"from {plan.source.fingerprint}, to {plan.target.fingerprint}"),
    ]
    if result.interrupted:
        rows.append(("interrupted", "the best plan so far"))
    if out is not None:
        rows.append(("written to", out))
    return "\n".join(f"{name:<{_LABEL}}{value}" for name, value in rows)


def describe_baselines(found: ReshardResult, times_us: dict[str, float | None]) -> str:
    """The table that `compare` prints for a resharding."""
    bound, plan = found.result.bound.us, found.finish_us
    lines = [f"{'':<{_LABEL}}{'us':>14}{'above bound':>14}{'of the plan':>14}"]
    lines.append(f"{'lower bound':<{_LABEL}}{bound:>14.6g}")
    for name, us in {"plan": plan, **times_us}.items():
        if us is None:
            lines.append(f"{name:<{_LABEL}}{'-':>14}")
        else:
            lines.append(f"{name:<{_LABEL}}{us:>14.6g}{percent(us / max(bound, 1e-9) - 1):>14}{us / plan:>13.4g}x")
    return "\n".join(lines)


def _classes(count: int) -> str:
    return "1 set of sources and targets" if count == 1 else f"{count} different sets of sources and targets"


def _gap(found: ReshardResult) -> str:
    if found.finish_ps <= found.result.bound.ps:
        return "optimal: the completion time equals the lower bound"
    return f"{percent(found.gap)} above the lower bound"


def _program(result: Result) -> list[tuple[str, str]]:
    """The program on the runtime that the plan was made for."""
    made = result.lowered
    if made is None:
        return []
    blocks = f"{counted(made.threadblocks, 'threadblock')} per GPU, {format_bytes(made.scratch_bytes)} of scratch"
    text = f"{format_us(made.program_us)} as its {result.schedule.demand.collective}; {blocks}"
    return [(f"on {made.runtime}", text)]


def _memory(found: ReshardResult) -> str:
    text = f"{format_bytes(found.staging_bytes)} for messages and relayed data on the rank with most"
    return f"{text}, in {counted(found.plan.stages, 'stage')}"
