"""Gaps of auto on clusters that no other benchmark has, drawn from seeds, and relations that hold for every machine.

Rules are developed on the seeds 0 to 199; the results in the docs are of other seeds.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import environment
from benchmarks.unseen_machines import Drawn, draw
from benchmarks.unseen_named import NAMED
from flowccl.errors import FlowcclError, InputError
from flowccl.synthesis import synthesize
from flowccl.units import format_bytes, parse_bytes

ROWS = (
    ("allgather", "16MB"),
    ("reduce_scatter", "16MB"),
    ("alltoall", "16MB"),
    ("allreduce", "1MB"),
    ("allreduce", "16MB"),
    ("allreduce", "64MB"),
)
GAP = 0.005  # the search may stop at this gap
_WORST = 12  # rows that are listed again at the end
_QUANTILES = (50, 90, 99)
_KEPT = ("finish_us", "lower_bound_us", "gap", "method", "chunks", "transfers", "bound_witness", "stopped")


def main(arguments: Sequence[str]) -> int:
    """Run the rows that are missing, print them, the table and the broken relations; exit code 0."""
    options = _options(arguments)
    machines = [one.drawn() for one in NAMED] if options.named else [draw(seed) for seed in _seeds(options.seeds)]
    print(_counts(machines))
    rows = _run(machines, options)
    print("\n" + table(rows))
    print("\n" + worst(rows))
    relations = []
    if options.relations:
        from benchmarks.unseen_relations import check_relations, relations_table

        relations = check_relations(machines, options)
        print("\n" + relations_table(relations))
    else:
        print("\n" + free_relations(rows))
    if options.json:
        _store(options, rows, relations)
    if options.plot:
        from benchmarks.unseen_plot import plot_unseen

        plot_unseen(rows, options.plot)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks unseen", description=__doc__)
    parser.add_argument("--seeds", default="0:12", metavar="A:B", help="seeds from A to before B (default: 0:12)")
    parser.add_argument("--named", action="store_true", help="instead of drawn machines, those of unseen_named.py")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each row (default: 5)")
    parser.add_argument("--quick", action="store_true", help="1 second for each row")
    parser.add_argument("--collectives", help="only these, separated by commas")
    parser.add_argument("--for", dest="runtime", default="ideal", help="the runtime (default: ideal)")
    parser.add_argument("--sms", type=int, help="SMs of a GPU, with --for")
    parser.add_argument("--relations", type=int, default=0, metavar="N", help="also check relations on N rows")
    parser.add_argument("--json", metavar="FILE", help="keep the rows here, and go on with the missing ones")
    parser.add_argument("--plot", metavar="FILE", help="draw the distribution of the gaps (.png, .svg or .pdf)")
    options = parser.parse_args(arguments)
    options.time_limit = 1.0 if options.quick else options.time_limit
    return options


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    if not (colon and first.isdecimal() and last.isdecimal() and int(first) < int(last)):
        raise InputError(f"--seeds: write A:B with A below B, for example 0:12; got {text!r}")
    return range(int(first), int(last))


def _counts(machines: Sequence[Drawn]) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(one.kind for one in machines).items()))
    uneven, limited = sum(one.is_uneven for one in machines), sum(bool(one.topology.limits) for one in machines)
    return (
        f"{len(machines)} machines: {kinds}; {uneven} with two kinds of hosts or two faults, {limited} with shared NICs"
    )


# -- rows -----------------------------------------------------------------------------------------------------------


def _run(machines: Sequence[Drawn], options: argparse.Namespace) -> list[dict[str, Any]]:
    stored = _stored(options)
    _load()
    rows = []
    for one in machines:
        for collective, size in NAMED[one.seed - 1].rows if options.named else ROWS:
            if options.collectives and collective not in options.collectives.split(","):
                continue
            key = (one.seed, collective, parse_bytes(size))
            row = stored.get(key) or measure(one, collective, parse_bytes(size), options)
            rows.append(row)
            print(line(row), flush=True)
            if options.json:
                _store(options, rows, [])
    return rows


def _load() -> None:
    from flowccl.compilation import warm_up
    from flowccl.methods.registry import methods_where

    warm_up(methods_where(lambda info: info.in_auto is not None))


def measure(one: Drawn, collective: str, size_bytes: int, options: argparse.Namespace) -> dict[str, Any]:
    """Synthesize a row with auto."""
    facts = {"seed": one.seed, "kind": one.kind, "gpus": one.topology.num_gpus, "collective": collective}
    facts["size_bytes"] = size_bytes
    began = time.monotonic()
    try:
        result = synthesize(
            one.topology,
            collective,
            size_bytes,
            time_limit_s=options.time_limit,
            gap=GAP,
            runtime=options.runtime,
            sms=options.sms,
        )
    except FlowcclError as error:
        return facts | {"error": str(error)}
    found = result.to_json()
    seconds = time.monotonic() - began
    row = facts | {name: found[name] for name in _KEPT if name in found} | {"seconds": round(seconds, 2)}
    return row | {"unused_s": round(max(options.time_limit - result.synthesis_s, 0.0), 2)}


def line(row: dict[str, Any]) -> str:
    """One line of the printed rows."""
    what = f"{row['seed']:>5} {row['kind']:<14} {row['gpus']:>3} {row['collective']:<14} "
    what += f"{format_bytes(row['size_bytes']).replace(' ', ''):>5}"
    if "error" in row:
        return f"{what} {row['error']}"
    found = f"{row['finish_us']:10.6g} {row['lower_bound_us']:10.6g} {row['gap']:7.2%}"
    return f"{what} {found}  {row['seconds']:5.2f} s  {row['method']}, {row['chunks']} chunks; {row.get('stopped', '')}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Median, 90th and 99th percentile and largest gap of every collective."""
    lines = [
        f"{'collective':<16} rows {'median':>8} {'90th':>8} {'99th':>8} {'largest':>8}  time left, gap above {GAP:.1%}"
    ]
    names = list(dict.fromkeys(row["collective"] for row in rows))
    for name in [*names, "all"]:
        chosen = [row for row in rows if name in ("all", row["collective"]) and "error" not in row]
        if not chosen:
            continue
        gaps = np.array([row["gap"] for row in chosen])
        quantiles = " ".join(f"{np.percentile(gaps, q):8.2%}" for q in _QUANTILES)
        unused = sum(row["unused_s"] > 0.1 and row["gap"] > GAP for row in chosen)
        lines.append(f"{name:<16} {len(chosen):>4} {quantiles} {gaps.max():8.2%}  {unused}")
    failed = sum("error" in row for row in rows)
    return "\n".join([*lines, *([f"{failed} rows failed"] if failed else [])])


def worst(rows: Sequence[dict[str, Any]]) -> str:
    """The rows with the largest gaps."""
    good = sorted((row for row in rows if "error" not in row), key=lambda row: -row["gap"])
    return "\n".join(["largest gaps:", *(line(row) for row in good[:_WORST])])


def free_relations(rows: Sequence[dict[str, Any]]) -> str:
    """Relations between the rows of a machine: scaling and concatenation."""
    known = {
        (row["seed"], row["collective"], row["size_bytes"]): row["finish_us"] for row in rows if "error" not in row
    }
    checks = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        small, large = known.get((seed, "allreduce", 16_000_000)), known.get((seed, "allreduce", 64_000_000))
        halves = [known.get((seed, name, 16_000_000)) for name in ("reduce_scatter", "allgather")]
        if small and large:
            checks.append((large / (4 * small) - 1, f"seed {seed}: allreduce 64MB {large:.6g}, 16MB {small:.6g} us"))
        if small and halves[0] and halves[1]:
            words = f"allreduce 16MB {small:.6g}, halves {halves[0]:.6g} and {halves[1]:.6g} us"
            checks.append((small / (halves[0] + halves[1]) - 1, f"seed {seed}: {words}"))
    broken = sorted((check for check in checks if check[0] > GAP), reverse=True)
    lines = [f"scaling and concatenation: {len(broken)} of {len(checks)} broken by more than {GAP:.1%}"]
    return "\n".join([*lines, *(f"  by {by:.1%}: {words}" for by, words in broken)])


# -- files ----------------------------------------------------------------------------------------------------------


def _stored(options: argparse.Namespace) -> dict[tuple[int, str, int], dict[str, Any]]:
    """Rows of an earlier run with the same options."""
    if options.json is None or not Path(options.json).exists():
        return {}
    value = json.loads(Path(options.json).read_text(encoding="utf-8"))
    for name in ("time_limit", "runtime", "sms"):
        if value["options"][name] != getattr(options, name):
            raise InputError(
                f"{options.json} has rows with {name} {value['options'][name]}; give the same, or another file"
            )
    rows = [row for row in value["rows"] if "error" not in row]
    return {(row["seed"], row["collective"], row["size_bytes"]): row for row in rows}


def _store(options: argparse.Namespace, rows: list[dict[str, Any]], relations: list[dict[str, Any]]) -> None:
    path = Path(options.json)
    value = {"environment": environment(), "options": vars(options), "rows": rows, "relations": relations}
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    new.replace(path)
