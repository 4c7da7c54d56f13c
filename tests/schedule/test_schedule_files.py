"""Schedule files: a written schedule is read back unchanged; error messages name the place of an error."""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import flowccl
from flowccl.demand.collectives import allgather, allreduce, collective
from flowccl.errors import FileError, InputError, ScheduleError
from flowccl.schedule.files import load_schedule, save_schedule, schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.topology.machines import machine
from flowccl.topology.routes import Routes
from tests.strategies import topologies

PACKAGE = Path(flowccl.__file__).parent
DOCS = Path(__file__).parents[2] / "docs" / "schedule.md"
EXAMPLES = re.findall(r"```json\n(.*?)```", DOCS.read_text(), re.DOTALL)


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((PACKAGE / name).read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


SCHEDULE = validator("schedule/schedule.schema.json")
DEMAND = validator("demand/demand.schema.json")


def validate(value: Any) -> None:
    SCHEDULE.validate(value)
    DEMAND.validate(value["demand"])


def ring() -> Schedule:
    """Allgather on a ring of three: every block goes in both directions."""
    topology, demand = machine("ring:3"), allgather(3, 3_000_000)
    transfers = [
        (int(link.src), (number,), 1000 * number) for number, link in enumerate(topology.links) if number % 2 == 0
    ]
    transfers += [(int(link.src), (number,), 0) for number, link in enumerate(topology.links) if number % 2]
    return Schedule.from_transfers(topology, demand, transfers, method="example")


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any table of transfers, valid or not: a file must keep both."""
    topology = draw(topologies())
    name = draw(st.sampled_from(("allgather", "alltoall", "allreduce", "broadcast")))
    demand = collective(name, topology.num_gpus, draw(st.integers(100, 10**9)), draw(st.integers(1, 3)))
    link = st.integers(0, len(topology.links) - 1)
    transfer = st.tuples(
        st.integers(0, len(demand) - 1),
        st.lists(link, min_size=1, max_size=3).map(tuple),
        st.integers(-(2**60), 2**60),
        st.booleans(),
    )
    return Schedule.from_transfers(
        topology, demand, draw(st.lists(transfer, max_size=8)), method=draw(st.text("ab é", max_size=4))
    )


@settings(deadline=None)
@given(schedules())
def test_any_schedule_comes_back_the_same(schedule: Schedule) -> None:
    value = json.loads(json.dumps(schedule_to_json(schedule)))
    validate(value)
    assert schedule_from_json(value) == schedule


def test_files_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    schedule = ring()
    for name in ("ring.json", "ring.json.gz"):
        save_schedule(schedule, tmp_path / name)
        assert load_schedule(tmp_path / name) == schedule
        assert load_schedule(tmp_path / name).finish_ps == schedule.finish_ps
    assert (tmp_path / "ring.json.gz").stat().st_size < (tmp_path / "ring.json").stat().st_size


def test_the_content_of_a_file() -> None:
    schedule = ring()
    value = schedule_to_json(schedule)
    assert list(value)[:5] == ["format", "version", "flowccl", "method", "fingerprint"]
    assert value["fingerprint"] == schedule.topology.fingerprint
    assert value["routes"] == [[0], [2], [4], [1], [3], [5]]
    assert value["transfers"] == {
        "chunk": [0, 1, 2, 1, 2, 0],
        "route": [0, 1, 2, 3, 4, 5],
        "start_ps": [0, 2000, 4000, 0, 0, 0],
    }


@pytest.mark.parametrize(("flags", "stored"), [((0, 0), None), ((1, 1), True), ((0, 1), [False, True])])
def test_the_reduce_column_is_short(flags: tuple[int, int], stored: Any) -> None:
    transfers = [(0, (0,), 0, bool(flags[0])), (1, (1,), 5, bool(flags[1]))]
    schedule = Schedule.from_transfers(machine("ring:2"), allreduce(2, 10), transfers)
    value = schedule_to_json(schedule)
    assert value["transfers"].get("reduce") == stored
    assert schedule_from_json(value) == schedule


def test_a_large_table_is_compact(tmp_path: Path) -> None:
    topology = machine("ring:16")
    count, links = 20_000, len(topology.links)
    rng = np.random.default_rng(1)
    schedule = Schedule(
        topology,
        allgather(16, 16_000_000),
        Routes(np.arange(links + 1), np.arange(links)),
        rng.integers(0, 16, count),
        rng.integers(0, links, count),
        40_000_000 * np.sort(rng.integers(0, 600, count)),
        np.zeros(count, dtype=np.bool_),
    )
    for name, most in (("large.json", 20), ("large.json.gz", 4)):
        save_schedule(schedule, tmp_path / name)
        assert load_schedule(tmp_path / name) == schedule
        assert (tmp_path / name).stat().st_size < most * count


def test_the_machine_is_compared_by_its_fingerprint(tmp_path: Path) -> None:
    schedule, other = ring(), machine("ring:4")
    path = tmp_path / "ring.json"
    save_schedule(schedule, path)
    assert load_schedule(path, machine("ring:3")) == schedule
    with pytest.raises(ScheduleError) as caught:
        load_schedule(path, other)
    assert str(caught.value) == (
        f"{path}: made for another machine: ring:3 with fingerprint {schedule.topology.fingerprint}, "
        f"not ring:4 with fingerprint {other.fingerprint}"
    )


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_the_documentation_load(text: str) -> None:
    value = json.loads(text)
    validate(value)
    schedule = schedule_from_json(value)
    assert schedule.finish_us == pytest.approx(40.7)
    arrived = sorted(zip(schedule.chunk.tolist(), schedule.timing.end_node.tolist(), strict=True))
    assert arrived == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


def test_there_is_an_example() -> None:
    assert len(EXAMPLES) == 1


WHOLE = "must be a whole number, "


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", "flowccl-demand", "format must be 'flowccl-schedule', got \"flowccl-demand\""),
        ("version", 3, "version must be 1 or 2, got 3; the file was written by a newer flowccl"),
        ("transfer", {}, 'unknown key "transfer"; nearest is "transfers"'),
        ("method", 3, "method must be a string, got 3"),
        ("topology.name", 3, "topology: name must be a string, got 3"),
        ("demand.gpus", 1, "demand: allgather: needs at least 2 gpus, got 1"),
        ("demand.pieces", True, f"demand: pieces: {WHOLE}1 to 2147483647, got true"),
        ("routes", 5, "routes: must be a list of lists of links, got 5"),
        ("routes.1", [], "routes[1]: must be a list of one or more links, got none"),
        ("routes.1", 7, "routes[1]: must be a list of one or more links, got 7"),
        ("routes.1", [0, 6], f"routes[1][1]: {WHOLE}0 to 5, got 6"),
        ("routes.1", [True], f"routes[1][0]: {WHOLE}0 to 5, got true"),
        ("transfers", 5, "transfers: must be an object, got 5"),
        ("transfers.chunks", [], 'transfers: unknown key "chunks"; nearest is "chunk"'),
        ("transfers.chunk", 5, "transfers.chunk: must be a list of whole numbers, got 5"),
        ("transfers.chunk.2", 3, f"transfers.chunk[2]: {WHOLE}0 to 2, got 3"),
        ("transfers.chunk.2", 2**32, f"transfers.chunk[2]: {WHOLE}0 to 2, got {2**32}"),
        ("transfers.chunk.2", False, f"transfers.chunk[2]: {WHOLE}0 to 2, got false"),
        ("transfers.route.0", -1, f"transfers.route[0]: {WHOLE}0 to 5, got -1"),
        ("transfers.start_ps.1", 0.5, f"transfers.start_ps[1]: {WHOLE}{-(2**60)} to {2**60}, got 0.5"),
        ("transfers.start_ps.1", 2**80, f"transfers.start_ps[1]: {WHOLE}{-(2**60)} to {2**60}, got {2**80}"),
        ("transfers.start_ps", [1], "transfers.start_ps: has 1 entries, chunk has 6"),
        ("transfers.reduce", [True], "transfers.reduce: has 1 entries, chunk has 6"),
        ("transfers.reduce", [True, 1], "transfers.reduce[1]: must be true or false, got 1"),
        ("transfers.reduce", 1, "transfers.reduce: must be true, false or a list of them, got 1"),
        ("fingerprint", 7, "fingerprint must be a string, got 7"),
    ],
)
def test_messages(place: str, value: Any, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        schedule_from_json(changed(place, value), "my.json")
    assert str(caught.value) == f"my.json: {message}"


def changed(place: str, value: Any) -> Any:
    """The ring's file with one place changed, for example "transfers.chunk.2"."""
    result: Any = deepcopy(schedule_to_json(ring()))
    *path, last = place.split(".")
    inner = result
    for key in path:
        inner = inner[int(key) if key.isdigit() else key]
    inner[int(last) if last.isdigit() else last] = value
    return result


@pytest.mark.parametrize("key", ["topology", "demand", "routes", "transfers"])
def test_a_missing_key_is_named(key: str) -> None:
    value = schedule_to_json(ring())
    del value[key]
    with pytest.raises(ScheduleError, match=f'my.json: "{key}" is missing; write for example'):
        schedule_from_json(value, "my.json")


def test_a_machine_that_was_changed_in_the_file_is_refused() -> None:
    value = changed("topology.links", schedule_to_json(ring())["topology"]["links"])
    value["topology"]["links"][0]["bandwidth"] = 1.0
    with pytest.raises(ScheduleError, match="the machine was changed after the schedule was made"):
        schedule_from_json(value, "my.json")
    del value["fingerprint"]
    assert schedule_from_json(value).topology.links[0].bandwidth_GBps == 1.0


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.json.gz"
    save_schedule(ring(), path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(FileError, match=re.escape(f"{path}: cannot be read")):
        load_schedule(path)


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@settings(deadline=None)
@given(
    place=st.sampled_from(
        ("method", "topology", "demand", "routes", "routes.0", "transfers", "transfers.chunk", "transfers.reduce")
    ),
    value=junk,
)
def test_junk_raises_an_input_error_and_never_crashes(place: str, value: Any) -> None:
    try:
        words = f"my.json: loads as {schedule_from_json(changed(place, value), 'my.json')}"
    except InputError as error:
        words = str(error)
    assert words.startswith("my.json: ")
