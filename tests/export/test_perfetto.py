"""Traces for Perfetto: the documented JSON format, one slice per transfer and link, one flow per data dependency."""

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.export import check, export
from flowccl.export.formats.perfetto import data_flows, lanes, schedule_trace
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from tests.schedule.test_transform import spread_out

NUMBER, INDEX = {"type": "number", "minimum": 0}, {"type": "integer", "minimum": 0}
WHERE = {"pid": INDEX, "tid": INDEX}
EVENTS = {  # the fields that the trace event format documents for each phase
    "X": {"ts": NUMBER, "dur": NUMBER, **WHERE, "args": {"type": "object"}},
    "M": {**WHERE, "args": {"type": "object", "minProperties": 1}},
    "s": {"ts": NUMBER, **WHERE, "id": INDEX, "cat": {"type": "string"}},
    "f": {"ts": NUMBER, **WHERE, "id": INDEX, "cat": {"type": "string"}, "bp": {"const": "e"}},
    "C": {"ts": NUMBER, **WHERE, "args": {"type": "object", "additionalProperties": NUMBER}},
}
FORMAT = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "oneOf": [
                    {
                        "properties": {"ph": {"const": phase}, "name": {"type": "string"}, **fields},
                        "required": ["ph", "name", *fields],
                    }
                    for phase, fields in EVENTS.items()
                ]
            },
        },
    },
}


def made(name: str, what: str, size: int, method: str = "direct", chunks: int = 1) -> Schedule:
    topology = machine(name)
    problem = Problem(topology, collective(what, topology.num_gpus, size, chunks))
    return next(load_method(method)(problem, SearchContext.with_limit(60.0)))


def events(trace: bytes) -> dict[str, list[dict]]:
    """The events by phase, after checks of the format, of overlaps, and that every flow starts and ends in a slice."""
    value = json.loads(trace)
    jsonschema.validate({**value, "traceEvents": []}, FORMAT)
    found = defaultdict(list)
    for event in value["traceEvents"]:
        found[event["ph"]].append(event)
    for phase, rows in found.items():  # a slice of each phase with jsonschema, all of them with plain checks
        jsonschema.validate({**value, "traceEvents": rows[:: max(1, len(rows) // 200)]}, FORMAT)
        for event in rows:
            assert event.keys() >= {"ph", "name", *EVENTS[phase]}
            assert all(type(event[key]) in (int, float) and event[key] >= 0 for key in ("ts", "dur") if key in event)
            assert all(type(event[key]) is int and event[key] >= 0 for key in ("pid", "tid", "id") if key in event)
    check_slices(found)
    return found


def check_slices(found: dict[str, list[dict]]) -> None:
    """Slices of a track do not overlap, tracks have names, and every flow starts and ends in a slice."""
    slices = defaultdict(list)
    for event in found["X"]:
        start = round(event["ts"] * 1000)
        slices[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for track in slices.values():
        track.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(track))
    for event in found["s"] + found["f"]:
        at, track = round(event["ts"] * 1000), slices[event["pid"], event["tid"]]
        inside = track[bisect_right(track, (at, math.inf)) - 1]
        assert inside[0] <= at <= inside[1]
    assert Counter(event["id"] for event in found["s"]) == Counter(event["id"] for event in found["f"])
    named = {(event["pid"], event["tid"]) for event in found["M"] if event["name"] == "thread_name"}
    assert set(slices) <= named


def dependencies(schedule: Schedule) -> int:
    """Sends of chunks that arrived before, each with the arrivals that it needs, counted one by one."""
    timing, demand = schedule.timing, schedule.demand
    arrivals = defaultdict(list)
    for j, end, when in zip(timing.end_transfer, timing.end_node, timing.end_arrival_ps.tolist(), strict=True):
        arrivals[int(schedule.chunk[j]), int(end)].append(when)
    count = 0
    for i, node, at in zip(timing.root_transfer, timing.root_node, timing.root_from_ps.tolist(), strict=True):
        chunk = int(schedule.chunk[i])
        before = sum(when <= at for when in arrivals[chunk, int(node)])
        several = len(demand.sources(chunk)) > 1
        count += before if several else int(before > 0 and node not in demand.sources(chunk))
    return count


@pytest.mark.parametrize(
    ("name", "what", "method"),
    [
        ("ring:4", "allgather", "ring"),
        ("ring:4", "allreduce", "ring"),
        ("dgx_h100:1", "alltoall", "direct"),
        ("torus:3x3", "reduce_scatter", "ring"),
        ("fat_tree:4", "allgather", "ring"),
        ("ndv2:2", "allgather", "ring"),
        pytest.param("dgx_h100:4", "allreduce", "ring", marks=pytest.mark.slow),
        pytest.param("torus:8x8", "alltoall", "direct", marks=pytest.mark.slow),
        pytest.param("torus:16x16", "allgather", "ring", marks=pytest.mark.slow),  # 65,280 transfers
    ],
)
def test_slices_and_flows_are_those_of_the_schedule(name: str, what: str, method: str) -> None:
    schedule = made(name, what, 1_440_000, method)
    found = events(schedule_trace(schedule))
    assert (
        len(found["X"]) == len(schedule.timing.hop_link) == sum(len(schedule.routes.links(r)) for r in schedule.route)
    )
    assert len(found["s"]) == len(found["f"]) == dependencies(schedule)
    assert Counter(event["args"]["transfer"] for event in found["X"]).keys() == set(range(len(schedule)))


@settings(max_examples=15, deadline=None)
@given(spread_out(buffers=False))
def test_random_schedules_have_valid_traces(schedule: Schedule) -> None:
    assume(len(schedule) > 0)
    found = events(schedule_trace(schedule))
    assert len(found["X"]) == len(schedule.timing.hop_link)
    assert len(found["s"]) == len(data_flows(schedule)[0])


def test_a_trunk_gets_lanes() -> None:
    link, begin, until = np.array([0, 0, 0, 0, 1]), np.array([0, 0, 5, 10, 3]), np.array([10, 4, 9, 12, 8])
    lane = lanes(link, begin, until)
    assert (lane.tolist() == [1, 0, 0, 0, 0]) or (lane.tolist() == [0, 1, 1, 0, 0])


def test_counters_end_at_zero_and_never_exceed_the_links() -> None:
    schedule = made("ring:4", "allgather", 40_000, "ring")
    found = events(schedule_trace(schedule))
    whole = [event["args"]["value"] for event in found["C"] if event["pid"] == 0]
    timing = schedule.timing
    at_once = [int(np.sum((timing.hop_from_ps <= at) & (timing.hop_to_ps > at))) for at in timing.hop_from_ps]
    assert (whole[-1], max(whole)) == (0, max(at_once))
    sent = [event["args"]["value"] for event in found["C"] if event["name"] == "GB/s sent"]
    assert max(sent) <= 2 * max(link.bandwidth_GBps for link in schedule.topology.links)


def test_a_message_is_one_slice() -> None:
    schedule = made("ring:2", "allgather", 80_000, "direct", chunks=2)
    together = replace(schedule, start_ps=schedule.start_ps * 0, message=schedule.route.astype(np.int32))
    found = events(schedule_trace(together))
    assert sorted(event["name"] for event in found["X"]) == ["chunks 0, 1", "chunks 2, 3"]


def test_export_writes_schedules_and_exported_files(tmp_path, capsys) -> None:
    schedule = made("ring:4", "allgather", 40_000, "ring")
    save_schedule(schedule, tmp_path / "s.json")
    export(schedule, "perfetto", tmp_path / "python.json")
    assert main(["export", str(tmp_path / "s.json"), "--to", "perfetto", "--out", str(tmp_path / "t.json")]) == 0
    assert (tmp_path / "t.json").read_bytes() == (tmp_path / "python.json").read_bytes()
    for target, file in (("msccl", "p.xml"), ("mscclpp", "p.json"), ("chakra", "p")):
        export(schedule, target, tmp_path / file)
        steps = check(tmp_path / file, target)[0].operations
        words = f"export {tmp_path / file} --to perfetto --machine ring:4 --size 40KB --out {tmp_path / 'program.json'}"
        assert main(words.split()) == 0
        found = events((tmp_path / "program.json").read_bytes())
        assert len(found["X"]) == len(steps)
        waits = sum(block != step.block for step in steps for block, _ in step.after)
        assert len(found["s"]) == sum(len(step.pops) for step in steps) + waits
        assert sum(event["name"] == "signal" for event in found["s"]) >= len(schedule)  # each transfer's arrival
        last = max(event["ts"] + event["dur"] for event in found["X"])
        assert target != "chakra" or last <= schedule.finish_us * 1.5  # messages of runtimes cost more than bytes here
    capsys.readouterr()


def test_refused(tmp_path, capsys) -> None:
    schedule = made("ring:4", "allgather", 40_000, "ring")
    file, text = tmp_path / "s.json", tmp_path / "t.txt"
    save_schedule(schedule, file)
    export(schedule, "msccl", tmp_path / "p.xml")
    text.write_text("hello")
    cases = {
        f"{tmp_path / 'p.xml'}": "is an exported file: its trace needs --machine MACHINE and --size SIZE for the times",
        f"{text} --machine ring:4 --size 1MB": "is neither a schedule nor a file for msccl, executor, rccl, mscclpp",
        f"{tmp_path / 'none'}": "none: no such file",
        f"{file} {file}": "perfetto: give one file; a trace shows one schedule",
        f"{file} --instances 2": "perfetto takes none of --inplace, --instances",
        f"{file} --size 1MB": "--machine and --size are for --to perfetto with an exported file",
    }
    for words, message in cases.items():
        assert main(["export", *words.split(), "--to", "perfetto", "--out", str(tmp_path / "out.json")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
