"""Schedules as flows for tests/simgrid/replay.py."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.schedule.generation.precedence import feeding
from flowccl.schedule.schedule import Schedule

PYTHON = "/usr/bin/python3"  # the Python of Debian, for which python3-simgrid installs the bindings


def has_simgrid() -> bool:
    """Whether the Python of the system has SimGrid."""
    known = shutil.which(PYTHON) is not None
    return known and subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True, check=False).returncode == 0


def flows(schedule: Schedule) -> dict[str, Any]:
    """The messages of a schedule as flows; their times follow from what they wait for, not from the schedule.

    A message waits for the data that it sends, for the message before it on every link and in the group of threadblocks
    of its sender if they do not overlap there, and for its turn in the proxy. Otherwise flows share links fairly. What
    happens after the last byte takes as long as in the schedule.
    """
    timing, costs, topology = schedule.timing, schedule.costs, schedule.topology
    first = np.flatnonzero(schedule.leader == np.arange(len(schedule)))
    of = np.searchsorted(first, schedule.leader)
    links = topology.link_GBps.tolist()
    wire = schedule.sent_bytes if costs is None else costs.wire_bytes
    begin, end = np.zeros(len(schedule), dtype=np.int64), np.zeros(len(schedule), dtype=np.int64)
    begin[timing.root_transfer], end[timing.root_transfer] = timing.root_from_ps, timing.root_to_ps
    source, arrival = begin.copy(), np.zeros(len(schedule), dtype=np.int64)
    source[timing.root_transfer] = timing.root_node
    np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
    lead = begin - schedule.start_ps if costs is None else costs.lead_ps
    begin = schedule.start_ps + lead
    needs: list[set[int]] = [set() for _ in first]
    for root, row in zip(*(rows.tolist() for rows in feeding(schedule)), strict=True):
        needs[of[timing.root_transfer[root]]].add(int(of[timing.end_transfer[row]]))
    behind: list[set[int]] = [set() for _ in first]
    order: list[set[int]] = [set() for _ in first]
    turn: list[set[int]] = [set() for _ in first]
    queues: dict[tuple[str, int, int], list[int]] = {}
    messages = []
    for n in np.argsort(begin[first], kind="stable").tolist():
        i = int(first[n])
        route = list(schedule.routes.links(int(schedule.route[i])))
        is_proxied = costs is not None and bool(costs.is_proxied[i])
        keys = [("link", link, 0) for link in route]
        if costs is not None and schedule.issuer[i] >= 0 and not is_proxied:
            keys.append(("group", int(source[i]), int(schedule.issuer[i])))
        for key in keys:
            before = {m for m in queues.setdefault(key, []) if end[first[m]] <= begin[i]}
            if key[0] == "link":
                order[n] |= before
            else:
                behind[n] |= before
            queues[key].append(n)
        if is_proxied:
            line = queues.setdefault(("proxy", int(source[i]), 0), [])
            turn[n] |= set(line[-1:])
            line.append(n)
    for n, i in enumerate(first.tolist()):
        route = list(schedule.routes.links(int(schedule.route[i])))
        if costs is not None and np.isfinite(costs.rate_GBps[i]):
            links.append(float(costs.rate_GBps[i]))  # of the threadblocks: a link of its own
            route.append(len(links) - 1)
        messages.append(
            {
                "links": route,
                "bytes": int(wire[i]),
                "after": sorted(needs[n] - {n}),
                "behind": sorted(behind[n]),
                "order": sorted(order[n] - behind[n]),
                "turn": sorted(turn[n]),
                "lead_us": int(lead[i]) / 1e6,
                "then_us": int(arrival[i] - end[i]) / 1e6,
            }
        )
    return {"links": links, "messages": messages}


def replayed_us(schedule: Schedule) -> float:
    """The completion time of a schedule in SimGrid."""
    script = Path(__file__).with_name("replay.py")
    done = subprocess.run(
        [PYTHON, str(script)], input=json.dumps(flows(schedule)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(max(json.loads(done.stdout)))
