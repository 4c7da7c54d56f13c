"""Demand files: round trips, and exact messages with the position of the mistake."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import flowccl.demand
from flowccl.demand.collectives import COLLECTIVES_BY_NAME, ROOTED, alltoall, alltoallv, collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.demand.files import demand_from_json, demand_to_json, load_demand, save_demand
from flowccl.demand.share import Share
from flowccl.errors import DemandError, FileError, InputError

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(flowccl.demand.__file__).parent / "demand.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
EXAMPLES = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "demand.md").read_text(), re.DOTALL)


def custom(chunks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"format": "flowccl-demand", "version": 1, "collective": "custom", "gpus": 4, "chunks": chunks} | more


@st.composite
def demands(draw: st.DrawFn) -> Demand:
    gpus = draw(st.integers(2, 6))
    pieces = draw(st.integers(1, 3))
    ranks = st.permutations(range(gpus)).flatmap(lambda p: st.integers(1, gpus).map(lambda n: tuple(p[:n])))
    chunks = []
    for _ in range(draw(st.integers(1, 4)) * pieces):
        sources, destinations = draw(ranks), draw(ranks)
        if sources == destinations and len(sources) == 1:
            destinations = ((sources[0] + 1) % gpus,)
        chunks.append(Chunk(bytes=draw(st.integers(1, 10**6)), sources=sources, destinations=destinations))
    size = draw(st.none() | st.integers(1, 2**60))
    return Demand.from_chunks(draw(st.sampled_from(("custom", "allgather", "alltoallv"))), gpus, chunks, size, pieces)


def test_a_demand_that_forbids_reductions() -> None:
    one, two = {"bytes": 8, "source": 0, "destination": 1}, {"bytes": 8, "sources": [0, 1], "destination": 1}
    assert not demand_from_json(custom([one | {"reduce": False}], reduce=False)).reduces
    assert demand_from_json(custom([two | {"reduce": True}], reduce=True)).reduces
    message = "demand: chunks[1]: reduce is false, but there are 2 sources; give one source or omit reduce"
    with pytest.raises(DemandError, match=re.escape(message)):
        demand_from_json(custom([one, two | {"reduce": False}]))
    message = "demand: reduce is false, but custom reduces: chunk 1 has several sources"
    with pytest.raises(DemandError, match=re.escape(message)):
        demand_from_json(custom([one, two], reduce=False))
    named = {"format": "flowccl-demand", "version": 1, "collective": "allreduce", "gpus": 4, "size_bytes": "1MB"}
    with pytest.raises(DemandError, match="reduce is false, but allreduce reduces: chunk 0 has several sources"):
        demand_from_json(named | {"reduce": False})


def test_a_switch_cannot_be_a_source() -> None:
    message = f'demand: chunks[0].source: "nvswitch0" {NO_RANK}'
    with pytest.raises(DemandError, match=re.escape(message)):
        demand_from_json(custom([{"bytes": 8, "source": "nvswitch0", "destination": 1}]))
    with pytest.raises(DemandError, match=re.escape("chunks[0].source: must be a whole number, 0 to 3, got 4")):
        demand_from_json(custom([{"bytes": 8, "source": 4, "destination": 1}]))


def test_tenants_round_trip_through_json() -> None:
    tenants = (Share("a", 2.0, 4, (0, 1), ()), Share("b", 1.0, 8))
    chunks = [Chunk(bytes=5, sources=(0,), destinations=(1,))] * 12
    demand = replace(Demand.from_chunks("custom", 4, chunks), tenants=tenants)
    value = json.loads(json.dumps(demand_to_json(demand)))
    VALIDATOR.validate(value)
    assert demand_from_json(value) == demand
    bad = value | {"tenants": [{"name": "a", "chunks": 5}]}
    with pytest.raises(DemandError, match="tenants: have 5 chunks in total, the demand has 12"):
        demand_from_json(bad)
    bad = value | {"tenants": [{"name": "a", "chunks": 12, "weight": 0}]}
    with pytest.raises(DemandError, match=re.escape("tenants[0].weight: must be > 0, got 0")):
        demand_from_json(bad)


@settings(deadline=None)
@given(demands())
def test_any_demand_round_trips_through_json(demand: Demand) -> None:
    value = json.loads(json.dumps(demand_to_json(demand)))
    VALIDATOR.validate(value)
    assert demand_from_json(value) == demand


@settings(deadline=None)
@given(name=st.sampled_from(sorted(COLLECTIVES_BY_NAME)), gpus=st.integers(2, 8), pieces=st.integers(1, 4))
def test_a_named_collective_is_stored_by_its_parameters(name: str, gpus: int, pieces: int) -> None:
    root = gpus - 1 if name in ROOTED else 0
    demand = collective(name, gpus, 1234, pieces, root)
    value = demand_to_json(demand)
    expected = {"format": "flowccl-demand", "version": 1, "collective": name, "gpus": gpus, "size_bytes": 1234}
    assert value == expected | {"pieces": pieces} | ({"root": root} if name in ROOTED else {})
    VALIDATOR.validate(value)
    assert demand_from_json(value) == demand


def test_a_nonstandard_collective_is_stored_as_columns() -> None:
    standard = [alltoall(3, 9).chunk(c) for c in range(6)]
    backwards = Demand.from_chunks("alltoall", 3, standard[::-1], size_bytes=9)
    value = demand_to_json(backwards)
    assert value["columns"] == {
        "bytes": [3] * 6,
        "source_rank": [2, 2, 1, 1, 0, 0],
        "destination_rank": [1, 0, 2, 0, 2, 1],
    }
    assert demand_from_json(value) == backwards


def test_a_demand_round_trips_through_files(tmp_path: Path) -> None:
    demand = alltoallv([[0, 5, 1], [7, 3, 0], [0, 0, 0]])
    for name in ("demand.json", "demand.json.gz"):
        save_demand(demand, tmp_path / name)
        assert load_demand(tmp_path / name) == demand
    assert (tmp_path / "demand.json.gz").read_bytes()[:2] == b"\x1f\x8b"


def test_a_named_collective_with_many_chunks_is_a_small_file(tmp_path: Path) -> None:
    save_demand(alltoall(256, 2**30), tmp_path / "large.json")
    assert (tmp_path / "large.json").stat().st_size < 200


@pytest.mark.parametrize("text", EXAMPLES)
def test_examples_of_the_documentation_load(text: str) -> None:
    value = json.loads(text)
    VALIDATOR.validate(value)
    assert demand_from_json(demand_to_json(demand_from_json(value))) == demand_from_json(value)


def test_the_documentation_has_an_example_of_each_form() -> None:
    keys = [set(json.loads(text)) & {"chunks", "columns", "matrix_bytes", "pieces"} for text in EXAMPLES]
    assert keys == [{"pieces"}, {"chunks"}, {"matrix_bytes"}, {"columns", "pieces"}]


def test_short_forms() -> None:
    chunks = [
        {"bytes": "1KB", "source": 0, "destinations": "all"},
        {"bytes": 5, "sources": "all", "destination": 2},
        {"bytes": "1KiB", "sources": [3], "destinations": [1, 3]},
    ]
    demand = demand_from_json(custom(chunks))
    assert [demand.chunk(c) for c in range(3)] == [
        Chunk(bytes=1000, sources=(0,), destinations=(1, 2, 3)),
        Chunk(bytes=5, sources=(0, 1, 2, 3), destinations=(2,)),
        Chunk(bytes=1024, sources=(3,), destinations=(1,)),
    ]
    assert demand.size_bytes == 2024  # gpu 1 receives the most
    assert demand_from_json(custom(chunks, size_bytes="3KB")).size_bytes == 3000


def test_a_matrix_is_an_alltoallv() -> None:
    value = {"format": "flowccl-demand", "version": 1, "gpus": 2, "matrix_bytes": [[0, "1KB"], [7, 0]], "pieces": 2}
    assert demand_from_json(value) == alltoallv([[0, 1000], [7, 0]], 2)


CHUNK = {"bytes": 1, "source": 0, "destination": 1}
NAMED = {"format": "flowccl-demand", "version": 1, "collective": "allgather", "gpus": 4, "size_bytes": "1MB"}
COLUMNS = {"bytes": [1, 2], "source_rank": [0, 1], "destination_count": [1, 2], "destination_rank": [1, 2, 3]}
NO_RANK = "is not a rank; only gpus, 0 to 3, send and receive data"
WHOLE = "must be a whole number, "


def without(value: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: entry for name, entry in value.items() if name != key}


def columns(**changes: Any) -> dict[str, Any]:
    return without(custom([]), "chunks") | {"size_bytes": 5, "columns": COLUMNS | changes}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "must be an object with format 'flowccl-demand', got 5"),
        ({"version": 1}, '"format" is missing; a file of this kind has "format": "flowccl-demand" at the top'),
        (NAMED | {"format": "flowccl-topology"}, "format must be 'flowccl-demand', got \"flowccl-topology\""),
        (NAMED | {"version": 2}, "version must be 1, got 2; the file was written by a newer flowccl"),
        (NAMED | {"version": True}, "version must be 1, got true"),
        (NAMED | {"gpu": 4}, 'unknown key "gpu"; nearest is "gpus"'),
        (NAMED | {"gpus": True}, f"gpus: {WHOLE}1 to 1048576, got true"),
        (NAMED | {"gpus": 4.0}, f"gpus: {WHOLE}1 to 1048576, got 4.0"),
        (NAMED | {"gpus": 1}, "allgather: needs at least 2 gpus, got 1"),
        (without(NAMED, "gpus"), '"gpus" is missing; write for example "gpus": 8'),
        (without(NAMED, "size_bytes"), '"size_bytes" is missing; write for example "size_bytes": "1MB"'),
        (NAMED | {"size_bytes": "1XB"}, "size_bytes: size: cannot read '1XB'; write for example 64MB, 1KiB or 4096"),
        (NAMED | {"size_bytes": None}, "size_bytes: size: expected text or a number such as 64MB, 1KiB or 4096, got "
                                       "NoneType"),
        (NAMED | {"pieces": 0}, f"pieces: {WHOLE}1 to 2147483647, got 0"),
        (NAMED | {"root": 1}, "allgather has no root, got root 1"),
        (NAMED | {"collective": "allgathr"}, "unknown collective 'allgathr'; did you mean allgather?"),
        (NAMED | {"collective": "custom"}, "custom needs chunks"),
        (NAMED | {"collective": 3}, "the collective must be a name such as allgather, got int"),
        (NAMED | {"chunks": [], "columns": {}}, "give only one of chunks and columns"),
        (custom([]), "custom: has no chunks; give at least one chunk"),
        (custom([CHUNK, 5]), "chunks[1]: must be an object, got 5"),  # type: ignore[list-item]
        (custom([CHUNK | {"byts": 1}]), 'chunks[0]: unknown key "byts"; nearest is "bytes"'),
        (custom([without(CHUNK, "bytes")]), 'chunks[0]: "bytes" is missing; write for example "bytes": "1MB"'),
        (custom([CHUNK | {"bytes": 0}]), "chunks[0].bytes: size 0: must be at least 1 byte"),
        (custom([CHUNK | {"source": 9}]), f"chunks[0].source: {WHOLE}0 to 3, got 9"),
        (custom([CHUNK | {"sources": [1]}]), "chunks[0]: give either source or sources"),
        (custom([without(CHUNK, "source")]), "chunks[0]: give either source or sources"),
        (custom([CHUNK | {"destination": [1, True]}]), f"chunks[0].destination[1]: {WHOLE}0 to 3, got true"),
        (custom([CHUNK | {"destination": [2, 2]}]), "chunks[0].destination: names a rank twice"),
        (custom([CHUNK | {"destination": []}]), "chunks[0].destination: needs at least one rank"),
        (custom([CHUNK | {"destination": "a"}]), f'chunks[0].destination: "a" {NO_RANK}'),
        (custom([CHUNK | {"destination": 0}]), "chunks[0]: rank 0 already has the chunk; give another destination"),
        (custom([CHUNK] * 3, pieces=2), "pieces: 3 chunks cannot form blocks of 2 chunks each"),
        (columns(bytes=[1]), "columns.source_rank: has 2 entries, must have 1"),
        (columns(bytes=[1, 2**70]), f"columns.bytes[1]: {WHOLE}1 to {2**60}, got {2**70}"),
        (columns(source_rank=[0, 4]), f"columns.source_rank[1]: {WHOLE}0 to 3, got 4"),
        (columns(source_rank=5), "columns.source_rank: must be a list of whole numbers, got 5"),
        (columns(destination_count=[1]), "columns.destination_count: has 1 entries, bytes has 2"),
        (columns(destination_count=[1, 1]), "columns.destination_rank: has 3 entries, must have 2"),
        (columns(destination_rank=[1, 2, 2]), "destinations: a chunk names the same rank twice"),
        (columns(destination_rank=[1, 2, 1]), "columns: rank 1 already has chunk 1, so it cannot be its destination"),
        (columns(destination_ranks=[1]), 'columns: unknown key "destination_ranks"; nearest is "destination_rank"'),
        (without(columns(), "size_bytes"), '"size_bytes" is missing; write for example "size_bytes": "1MB"'),
    ],
)  # fmt: skip
def test_messages(value: Any, message: str) -> None:
    with pytest.raises(DemandError) as caught:
        demand_from_json(value, "my.json")
    assert str(caught.value) == f"my.json: {message}"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 1]], "matrix_bytes: must have 2 rows of 2 entries, one per gpu"),
        ([[0, 1], 5], "matrix_bytes: must be a list of rows"),
        ([[0, 1], ["x", 0]], "matrix_bytes[1][0]: size: cannot read 'x'; write for example 64MB, 1KiB or 4096"),
        ([[0, -1], [1, 0]], "matrix_bytes[0][1]: size -1: must not be negative"),
        ([[0, False], [1, 0]], "matrix_bytes[0][1]: size: expected text or a number such as 64MB, 1KiB or 4096, got "
                               "bool"),
        ([[1, 0], [0, 1]], "alltoallv: all entries off the diagonal are 0; at least one must be positive"),
    ],
)  # fmt: skip
def test_messages_of_a_matrix(rows: Any, message: str) -> None:
    value = {"format": "flowccl-demand", "version": 1, "gpus": 2, "matrix_bytes": rows}
    with pytest.raises(DemandError) as caught:
        demand_from_json(value, "my.json")
    assert str(caught.value) == f"my.json: {message}"


def test_a_matrix_requires_alltoallv() -> None:
    value = {"format": "flowccl-demand", "version": 1, "collective": "alltoall", "gpus": 2, "matrix_bytes": []}
    with pytest.raises(DemandError, match=r"my\.json: matrix_bytes: requires alltoallv, got alltoall"):
        demand_from_json(value, "my.json")


def test_messages_for_broken_files_give_the_position(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('{"format": "flowccl-demand",\n "version": }')
    with pytest.raises(FileError, match=re.escape(f"{path}: not JSON: Expecting value at line 2, column 13")):
        load_demand(path)
    with pytest.raises(FileError, match="no such file"):
        load_demand(tmp_path / "none.json")


def refusal(value: Any) -> str:
    try:
        return f"my.json: loads as {demand_from_json(value, 'my.json')}"
    except InputError as error:
        return str(error)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
junk = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@settings(deadline=None)
@given(key=st.sampled_from(("collective", "gpus", "size_bytes", "pieces", "chunks", "columns", "matrix_bytes", "root")),
       value=junk)  # fmt: skip
def test_junk_is_refused_with_a_message(key: str, value: Any) -> None:
    assert refusal(NAMED | {key: value}).startswith("my.json: ")


@settings(deadline=None)
@given(key=st.sampled_from(("bytes", "source_count", "source_rank", "destination_count", "destination_rank")),
       value=junk | st.lists(st.integers(-1, 5), max_size=4))  # fmt: skip
def test_junk_in_columns_is_refused_with_a_message(key: str, value: Any) -> None:
    assert refusal(columns(**{key: value})).startswith("my.json: ")
