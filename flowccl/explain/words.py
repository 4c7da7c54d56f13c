"""The explanation of a schedule in words, for the terminal and the report."""

import numpy as np

from flowccl.explain.explanation import Explanation
from flowccl.explain.path import busy_link, cause_of
from flowccl.units import format_bytes, format_us, ps_to_us
from flowccl.wording import counted, percent

_MOST_ROWS = 24  # rows of the critical path in the terminal; `--json` has every transfer
_MOST_LINKS = 8
_LABEL = 17  # width of the first column, as in other tables


def describe(explanation: Explanation) -> str:
    """Return the text that `flowccl explain` prints."""
    schedule = explanation.schedule
    topology, demand = schedule.topology, schedule.demand
    rows = [
        ("machine", f"{topology.name}, {counted(topology.num_gpus, 'GPU')}"),
        ("collective", f"{demand.collective}, {format_bytes(demand.size_bytes)}"),
        ("completion time", f"{format_us(schedule.finish_us)}: {last_arrival(explanation)}"),
        ("critical path", path_in_parts(explanation)),
        ("slack", slack_in_words(explanation)),
    ]
    if explanation.left_shift_ps < schedule.finish_ps:
        saved = format_us(ps_to_us(schedule.finish_ps - explanation.left_shift_ps))
        rows.append(("left shift", f"starting every transfer as early as possible saves {saved}"))
    lines = [f"{name:<{_LABEL}}{value}" for name, value in rows]
    return "\n".join([*lines, *_path_lines(explanation), *_link_lines(explanation), *_gain_lines(explanation)])


def last_arrival(explanation: Explanation) -> str:
    """Return what ends last."""
    if not explanation.path:
        return "the last data is released then, and no transfer moves it"
    step, nodes = explanation.path[-1], explanation.schedule.topology.nodes
    return f"chunk {step.chunk} from {nodes[step.src].name} arrives at {nodes[step.dst].name}"


def path_in_parts(explanation: Explanation) -> str:
    """Return the parts of the completion time: "12 transfers: sending 40 us (93 %), latency 3 us"."""
    names = {"release": "released late", "idle": "idle without need"}
    finish = max(explanation.schedule.finish_ps, 1)
    parts = [
        f"{names.get(name, name)} {format_us(ps_to_us(ps))} ({100 * ps / finish:.1f} %)"
        for name, ps in explanation.parts_ps.items()
        if ps
    ]
    return f"{counted(len(explanation.path), 'transfer')}: {', '.join(parts)}"


def slack_in_words(explanation: Explanation) -> str:
    """Return how many transfers have slack, and how much."""
    total, none = len(explanation.slack_ps), explanation.critical_transfers
    half = format_us(ps_to_us(float(np.median(explanation.slack_ps))))
    if none == total:
        return f"none of the {counted(total, 'transfer')} can start later"
    rest = f"; half of all can start at least {half} later" if none < total / 2 else ""
    return f"{none} of {counted(total, 'transfer')} cannot start later{rest}"


def path_runs(explanation: Explanation) -> list[list[int]]:
    """Return the steps of the critical path in runs: consecutive transfers that keep one link busy."""
    schedule, path = explanation.schedule, explanation.path
    runs: list[list[int]] = []
    for number, step in enumerate(path):
        follows = number > 0 and step.cause == "link" and not step.idle_ps
        if follows and busy_link(schedule, path, number) == busy_link(schedule, path, number - 1):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def path_rows(explanation: Explanation) -> list[tuple[str, str, int, str]]:
    """Return the runs of the critical path: start, link, number of transfers, why they start then."""
    schedule, path, topology = explanation.schedule, explanation.path, explanation.schedule.topology
    return [
        (
            format_us(path[run[0]].start_us),
            topology.link_name(busy_link(schedule, path, run[0])),
            len(run),
            cause_of(schedule, path, run[0]),
        )
        for run in path_runs(explanation)
    ]


def _path_lines(explanation: Explanation) -> list[str]:
    rows = path_rows(explanation)
    if not rows:
        return []
    width, half = max(4, *(len(row[1]) for row in rows)), _MOST_ROWS // 2
    made = [f"{start:>11}  {name:<{width}}  {count:>9}  {why}" for start, name, count, why in rows]
    if len(made) > _MOST_ROWS:
        made = [*made[:half], f"{'...':>11}  {len(made) - _MOST_ROWS} more rows, see --json", *made[-half:]]
    end = f"{format_us(explanation.schedule.finish_us):>11}  {last_arrival(explanation)}"
    return ["", f"{'start':>11}  {'link':<{width}}  transfers  why it starts then", *made, end]


def _link_lines(explanation: Explanation) -> list[str]:
    rows, finish = explanation.links[:_MOST_LINKS], max(explanation.schedule.finish_ps, 1)
    if not rows:
        return []
    width = max(27, *(len(row.name) for row in rows))
    lines = ["", f"{'links on the critical path':<{width}}  {'time there':>11}   share  use of the link"]
    for row in rows:
        time, share = format_us(ps_to_us(row.time_ps)), 100 * row.time_ps / finish
        lines.append(f"{row.name:<{width}}  {time:>11}  {share:>4.1f} %  {100 * row.use:.1f} %")
    if len(explanation.links) > _MOST_LINKS:
        lines.append(f"... {len(explanation.links)} links in total")
    return lines


def _gain_lines(explanation: Explanation) -> list[str]:
    if explanation.gains is None:
        return ["", "links change their bandwidth over time: what faster links would save is not computed"]
    if not explanation.gains:
        return []
    rows = gain_rows(explanation)
    width = max(26, *(len(name) for name, _, _ in rows))
    head = f"{'with 10 % more bandwidth':<{width}}  completion time  saves (same transfers, same order)"
    return ["", head, *(f"{name:<{width}}  {finish:>15}  {saved}" for name, finish, saved in rows)]


def gain_rows(explanation: Explanation) -> list[tuple[str, str, str]]:
    """Return what more bandwidth would give: links or limit, with the number of links; completion time; saved time."""
    rows = []
    for gain in explanation.gains or ():
        name = gain.name if gain.links <= 1 else f"{gain.name} ({gain.links})"
        part = percent(gain.saved_ps / max(explanation.left_shift_ps, 1))
        saved = f"{format_us(gain.saved_us)} ({part})" if gain.saved_ps else "nothing: other links are as critical"
        rows.append((name, format_us(gain.finish_us), saved))
    return rows
