"""What each method of the portfolio did: a row for each, for `--verbose` and `--json`."""

from collections.abc import Mapping, Sequence, Set
from math import inf

from flowccl.auto.arm import Arm


def methods_tried(arms: Sequence[Arm], dropped: Set[str], left_out: Mapping[str, float]) -> list[dict[str, object]]:
    """A row for each method: its chunk counts, steps, seconds and best completion time, and how it ended.

    `dropped` are those with an error; `left_out` has the expected seconds of those whose first step takes too long.
    """
    rows = list[dict[str, object]]()
    for name in dict.fromkeys(arm.name for arm in arms):
        tried = sorted((arm for arm in arms if arm.name == name), key=lambda arm: arm.count)
        best_ps = min(arm.best_ps for arm in tried)
        done = "" if any(not arm.over for arm in tried) else "done"
        row: dict[str, object] = {
            "method": name,
            "chunks": [arm.count for arm in tried],
            "steps": sum(arm.taken for arm in tried),
            "seconds": round(sum(arm.total_s for arm in tried), 2),
            "best_us": None if best_ps == inf else best_ps / 1e6,
            "ended": "an error" if name in dropped else done,
        }
        rows.append(row)
    for name in (name for name in left_out if all(arm.name != name for arm in arms)):
        ended = f"left out: a first step takes about {left_out[name]:.0f} s"
        rows.append({"method": name, "chunks": [], "steps": 0, "seconds": 0.0, "best_us": None, "ended": ended})
    return rows
