"""Layouts and their files: the rules of DTensor, the JSON Schema, errors in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

import flowccl.resharding
from flowccl.errors import InputError
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout
from flowccl.resharding.layout_files import layout_from_json, layout_to_json, load_layout, save_layout
from flowccl.resharding.reference import local_indices
from flowccl.resharding.traffic import traffic
from tests.resharding.random_layouts import layout_pairs

SCHEMA = json.loads((Path(flowccl.resharding.__file__).parent / "layout.schema.json").read_text())


def indices(size, mesh, placements):
    tensor = TensorLayout("w", (size,), 1, "int8", mesh, placements)
    return [local_indices(tensor, rank)[0].tolist() for rank in mesh.ranks]


def test_uneven_shards_are_those_of_dtensor():
    assert indices(10, Mesh((4,), (0, 1, 2, 3)), (Placement(0),)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert indices(5, Mesh((4,), (0, 1, 2, 3)), (Placement(0),)) == [[0, 1], [2, 3], [4], []]
    two = Mesh((2, 2), (0, 1, 2, 3))
    assert indices(9, two, (Placement(0), Placement(0))) == [[0, 1, 2], [3, 4], [5, 6], [7, 8]]
    assert indices(9, two, (Placement(), Placement(0))) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]] * 2


def test_strided_shards_are_those_of_dtensor():
    """The example of the documentation of torch's _StridedShard."""
    mesh = Mesh((4,), (0, 1, 2, 3))
    assert indices(9, mesh, (Placement(0, 2),)) == [[0, 1, 5], [2, 3, 6], [4, 7], [8]]


@settings(max_examples=30, deadline=None)
@given(layout_pairs())
def test_files_keep_layouts_and_match_the_schema(pair):
    for layout in pair:
        value = json.loads(json.dumps(layout_to_json(layout)))
        Draft202012Validator(SCHEMA).validate(value)
        again = layout_from_json(value)
        assert again == layout
        assert again.fingerprint == layout.fingerprint


@settings(max_examples=30, deadline=None)
@given(layout_pairs())
def test_every_wanted_byte_is_in_one_class(pair):
    found = traffic(*pair)
    for tensor in pair[1].tensors:
        for rank in tensor.ranks:
            if tensor.mesh is None:
                wanted = sum(part.end - part.begin for part in tensor.ranges if part.rank == rank)
            else:
                wanted = int(np.prod([len(one) for one in local_indices(tensor, rank)])) * tensor.element_bytes
            got = 0
            for block, _, _ in found.cells():
                if tensor.name in block.names:
                    sizes = block.cell_bytes()[block.names.index(tensor.name)]
                    got += sum(int(sizes[cell]) for cell in block.cells_of(rank, "target"))
            assert got == wanted


def test_a_count_stands_for_many_tensors(tmp_path):
    value = {
        "format": "flowccl-layout",
        "version": 1,
        "meshes": {"all": {"ranks": "0-3"}},
        "tensors": [
            {"name": "w{}", "count": 3, "shape": [4, 4], "dtype": "bfloat16", "mesh": "all", "placements": ["Shard(0)"]}
        ],
    }
    Draft202012Validator(SCHEMA).validate(value)
    layout = layout_from_json(value)
    assert [tensor.name for tensor in layout.tensors] == ["w0", "w1", "w2"]
    assert (layout.bytes, layout.ranks) == (96, (0, 1, 2, 3))
    save_layout(layout, tmp_path / "layout.json.gz")
    assert load_layout(tmp_path / "layout.json.gz") == layout


WEIGHT = {"name": "w", "shape": [4, 6], "dtype": "bfloat16", "mesh": "m", "placements": ["Shard(0)"]}
RANGES = {"name": "w", "shape": [4, 6], "dtype": "bfloat16"}


def file_of(*tensors, mesh=None):
    meshes = {"m": {"ranks": [0, 1]} if mesh is None else mesh}
    return {"format": "flowccl-layout", "version": 1, "meshes": meshes, "tensors": list(tensors)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (file_of(), "a.json: tensors: must be a list of one or more tensors, got an empty list"),
        (
            file_of(WEIGHT | {"placements": ["Shard(2)"]}),
            "a.json: tensor w: Shard(2), but its shape [4, 6] has only dimensions 0 to 1",
        ),
        (
            file_of(WEIGHT | {"placements": ["Shard(0)", "Replicate"]}),
            "a.json: tensor w: has 2 placements, but its mesh has 1 dimensions; give one placement for each",
        ),
        (
            file_of(WEIGHT | {"placements": ["shard"]}),
            'a.json: tensors[0].placements[0]: must be Shard(0), Replicate or StridedShard(0, 4), got "shard"',
        ),
        (file_of(WEIGHT | {"mesh": "n"}), 'a.json: tensors[0]: there is no mesh "n"; the meshes are m'),
        (file_of(WEIGHT, WEIGHT), "a.json: tensor w is given twice"),
        (file_of(WEIGHT, mesh={"ranks": [0, 0]}), "a.json: meshes.m: a mesh names rank 0 twice"),
        (
            file_of(WEIGHT, mesh={"shape": [2, 2], "ranks": [0, 1]}),
            "a.json: meshes.m: a mesh of shape 2 x 2 cannot have 2 ranks",
        ),
        (
            file_of(RANGES | {"ranges": [[0, 0, 30], [0, 20, 48]]}),
            "a.json: tensor w: the ranges 0 to 30 and 20 to 48 of rank 0 overlap",
        ),
        (
            file_of(RANGES | {"ranges": [[0, 0, 49]]}),
            "a.json: tensor w: bytes 0 to 49 of rank 0 do not lie within its 48 bytes",
        ),
        (file_of(RANGES), "a.json: tensors[0]: give either mesh and placements, or ranges"),
        (
            file_of(WEIGHT | {"dtype": "float7"}),
            'a.json: tensors[0]: dtype "float7" is unknown; give element_bytes too',
        ),
        (
            file_of(WEIGHT | {"element_bytes": 4}),
            "a.json: tensors[0]: an element of bfloat16 has 2 bytes, not 4",
        ),
        (file_of(WEIGHT | {"placement": []}), 'a.json: tensors[0]: unknown key "placement"; nearest is "placements"'),
    ],
)
def test_bad_files_are_refused_in_one_line(value, message):
    with pytest.raises(InputError) as error:
        layout_from_json(value, "a.json")
    assert str(error.value) == message


def one_tensor(**changes):
    facts = {"name": "w", "shape": (4, 6), "element_bytes": 2, "dtype": "bfloat16"}
    facts |= {"mesh": Mesh((2,), (0, 1)), "placements": (Placement(0),)} | changes
    return Layout((TensorLayout(**facts),))


def test_layouts_that_do_not_fit_are_refused():
    cases = [
        (
            one_tensor(shape=(4, 7)),
            "tensor w: its shape is [4, 6] in the source layout and [4, 7] in the target layout; "
            "the shapes must be equal",
        ),
        (one_tensor(name="v"), "tensor v is in the target layout, but not in the source layout"),
        (
            one_tensor(dtype="float32", element_bytes=4),
            "tensor w: is bfloat16 in the source layout and float32 in the target layout; cast it before, "
            "since a plan only moves bytes",
        ),
    ]
    for target, message in cases:
        with pytest.raises(InputError) as error:
            traffic(one_tensor(), target)
        assert str(error.value) == message


def test_source_tensors_that_no_target_wants_need_partial():
    more = Layout((*one_tensor().tensors, *one_tensor(name="v").tensors))
    with pytest.raises(InputError, match="tensor v is in the source layout, but not in the target layout; allow it"):
        traffic(more, one_tensor(mesh=Mesh((2,), (2, 3))))
    assert traffic(more, one_tensor(mesh=Mesh((2,), (2, 3))), partial=True).copied_bytes == 48


def test_bytes_that_no_source_has_are_refused():
    from flowccl.resharding.layout import TensorRange

    some = one_tensor(mesh=None, placements=(), ranges=(TensorRange(0, 0, 40),))
    with pytest.raises(InputError) as error:
        traffic(some, one_tensor(mesh=Mesh((1,), (3,)), placements=(Placement(),)))
    assert str(error.value) == "tensor w: rank 3 wants bytes 40 to 48, which no source rank has"
