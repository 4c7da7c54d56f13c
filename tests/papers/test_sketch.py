"""Sketches: files of flowccl and of TACCL, their meaning on a machine, and messages for invalid files."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.errors import FileError, InputError
from flowccl.papers.taccl.sketch import Sketch, SwitchSketch, check_sketch, default_sketch, rotated_ranks
from flowccl.papers.taccl.sketch_files import load_sketch, sketch_from_json
from flowccl.topology.machines import machine

TACCL = Path(__file__).parents[1] / "data" / "taccl"


# -- TACCL's files ----------------------------------------------------------------------------------------------------


def test_the_taccl_sketch_of_ndv2_sends_from_gpu_0_to_gpu_1():
    sketch = load_sketch(TACCL / "sk1-ndv2-n2.json", machine("ndv2:2"))
    assert sketch.between_hosts == ((0, 9), (8, 1))
    assert sketch.rotations == ((8, 16),)
    assert (sketch.chunks, sketch.senders, sketch.switches) == (1, (), ())


def test_the_taccl_sketch_of_dgx2_has_senders_switches_and_rotations():
    sketch = load_sketch(TACCL / "sk1-dgx2-n2.json", machine("dgx2:2"))
    assert sketch.between_hosts is not None
    assert sketch.between_hosts[:2] == ((1, 16), (3, 18))
    assert sketch.senders[:4] == (1, 1, 3, 3)
    assert sketch.senders[16:18] == (17, 17)
    assert [(len(switch.gpus), switch.inclination) for switch in sketch.switches] == [(16, "uc-min")] * 2
    assert sketch.rotations == ((2, 16), (16, 32))
    assert sketch.chunks == 2


def test_direct_map_connects_equal_ranks():
    topology = machine("full:32")
    sketch = load_sketch(TACCL / "sk2-dgx2-n2.json", topology)
    assert sketch.between_hosts is not None
    assert sketch.between_hosts[:2] == ((0, 16), (1, 17))
    assert [switch.inclination for switch in sketch.switches] == ["uc-max", "uc-max"]


def test_fully_connected_keeps_all_connections_of_the_machine():
    assert load_sketch(TACCL / "sk2-ndv2-n2.json", machine("ndv2:2")).between_hosts is None


@pytest.mark.parametrize("name", ["sk1-ndv2-n1", "sk1-dgx2-n1"])
def test_sketches_of_one_host(name):
    topology = machine("dgx1" if "ndv2" in name else "dgx2:1")
    assert load_sketch(TACCL / f"{name}.json", topology).between_hosts is None


# -- round trip -------------------------------------------------------------------------------------------------------


@st.composite
def sketches(draw: st.DrawFn, gpus: int) -> Sketch:
    """A random sketch for this number of GPUs, valid or invalid."""
    rank = st.integers(0, gpus - 1)
    pair = st.tuples(rank, rank).filter(lambda ends: ends[0] != ends[1])
    size = draw(st.sampled_from([d for d in range(2, gpus + 1) if gpus % d == 0]))
    switch = st.builds(
        SwitchSketch,
        gpus=st.lists(rank, min_size=2, unique=True).map(tuple),
        inclination=st.sampled_from(("uc-min", "uc-max", "none")),
        most=st.none() | st.integers(1, 3),
    )
    return Sketch(
        name=draw(st.text(max_size=5)),
        between_hosts=draw(st.none() | st.lists(pair, max_size=6, unique=True).map(tuple)),
        closed=draw(st.lists(pair, max_size=3, unique=True).map(tuple)),
        senders=tuple(draw(st.lists(rank, min_size=gpus, max_size=gpus))) if draw(st.integers(0, 4)) == 0 else (),
        switches=tuple(draw(st.lists(switch, max_size=2))),
        rotations=((draw(st.integers(1, size - 1)), size),) if draw(st.booleans()) else (),
        chunks=draw(st.integers(1, 3)),
        reach=draw(st.sampled_from(("shortest", "any"))),
    )


def sketch_to_json(sketch: Sketch) -> dict[str, Any]:
    """Return a sketch as a JSON value."""
    result: dict[str, Any] = {"format": "flowccl-sketch", "version": 1, "name": sketch.name}
    if sketch.between_hosts is not None:
        result["between_hosts"] = [list(pair) for pair in sketch.between_hosts]
    for key, pairs in (("closed", sketch.closed), ("symmetry", sketch.rotations)):
        if pairs:
            result[key] = [list(pair) for pair in pairs]
    if sketch.senders:
        result["senders"] = list(sketch.senders)
    if sketch.switches:
        result["switches"] = [_switch_to_json(switch) for switch in sketch.switches]
    return result | {"chunks": sketch.chunks, "reach": sketch.reach}


def _switch_to_json(switch: SwitchSketch) -> dict[str, Any]:
    most = {} if switch.most is None else {"most": switch.most}
    return {"gpus": list(switch.gpus), "inclination": switch.inclination, **most}


@settings(max_examples=100)
@given(sketches(8))
def test_a_sketch_round_trips_through_json(sketch):
    assert sketch_from_json(json.loads(json.dumps(sketch_to_json(sketch)))) == sketch


def test_a_sketch_round_trips_through_a_file(tmp_path):
    topology = machine("dgx2:2")
    sketch = load_sketch(TACCL / "sk1-dgx2-n2.json", topology)
    (tmp_path / "ours.json").write_text(json.dumps(sketch_to_json(sketch)))
    assert load_sketch(tmp_path / "ours.json", topology) == sketch


# -- default sketches -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rotations", "switches"),
    [
        ("ndv2:2", ((8, 16),), 0),
        ("dgx2:2", ((2, 16), (16, 32)), 2),
        ("ring:6", ((1, 6),), 0),
        ("line:4", (), 0),
        ("dgx_a100:2", ((1, 8), (8, 16)), 2),
    ],
)
def test_a_default_sketch_has_the_rotations_and_switches_of_the_machine(name, rotations, switches):
    sketch = default_sketch(machine(name))
    assert sketch.rotations == rotations
    assert len(sketch.switches) == switches
    check_sketch(sketch, machine(name))


def test_a_rotation_moves_ranks_within_their_block():
    assert rotated_ranks(machine("ring:6"), 1, 3).tolist() == [1, 2, 0, 4, 5, 3]


# -- invalid sketches -------------------------------------------------------------------------------------------------

OURS = {"format": "flowccl-sketch", "version": 1}
BAD = [
    ([], "must be an object, got an empty list"),
    ({}, 'is neither a TACCL sketch nor a flowccl sketch: write "format": "flowccl-sketch" at the top'),
    (OURS | {"version": 2}, 'is neither a TACCL sketch nor a flowccl sketch: write "version": 1 at the top, got 2'),
    (OURS | {"closed": [[0, 16]]}, "closed: there is no gpu 16; ndv2:2 has 0 to 15"),
    (OURS | {"closed": [[0]]}, "closed[0]: must be two numbers, got a list"),
    (OURS | {"senders": [0]}, "senders: must have one entry for each of the 16 gpus, got 1"),
    (OURS | {"symmetry": [[1, 16]]}, "symmetry [1, 16]: ndv2:2 does not have this symmetry; remove it"),
    (
        OURS | {"symmetry": [[8, 12]]},
        "symmetry [8, 12]: must have 0 < offset < size and a size that divides the 16 gpus of ndv2:2",
    ),
    (
        OURS | {"symmetry": [[8, 16]], "between_hosts": [[0, 9]]},
        "symmetry [8, 16]: changes the connections of the sketch; remove it",
    ),
    (OURS | {"switches": [{"gpus": [0, 77]}]}, "switches[0]: there is no gpu 77; ndv2:2 has 0 to 15"),
    (
        OURS | {"switches": [{"gpus": [0, 1], "inclination": "up"}]},
        "switches[0]: inclination must be uc-min, uc-max or none, got 'up'",
    ),
    (OURS | {"chunks": 0}, "chunks: must be a whole number, 1 to 1024, got 0"),
    (OURS | {"reach": "far"}, "reach must be shortest or any, got 'far'"),
    ({"intranode_sketch": {}, "nnodes": 3}, "nnodes: ndv2:2 has 16 gpus, which cannot be divided into 3 equal hosts"),
    (
        {"intranode_sketch": {}, "nnodes": 2, "internode_sketch": {"internode_conn": {"0": [8]}}},
        "internode_sketch.internode_conn: there is no gpu 8; a host has 0 to 7",
    ),
    (
        {"intranode_sketch": {}, "nnodes": 2, "internode_sketch": {}},
        'internode_sketch.internode_conn: must be "fully-connected", "direct-map" or an object such as {"0": [1]}',
    ),
]


@pytest.mark.parametrize(("value", "message"), BAD)
def test_messages_name_the_file_and_the_fix(tmp_path, value, message):
    path = tmp_path / "sketch.json"
    path.write_text(json.dumps(value))
    with pytest.raises(FileError) as error:
        load_sketch(path, machine("ndv2:2"))
    assert str(error.value) == f"{path}: {message}"


def test_a_taccl_topology_is_not_a_sketch():
    with pytest.raises(FileError, match="is neither a TACCL sketch nor a flowccl sketch"):
        load_sketch(TACCL / "topo-ndv2-1MB.json", machine("ndv2:2"))


def test_a_switch_sketch_is_validated():
    with pytest.raises(InputError, match="most must be at least 1, got 0"):
        SwitchSketch(gpus=(0, 1), most=0)
