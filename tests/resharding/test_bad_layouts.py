"""Layouts that do not fit, on the command line: one line, exit code 2, before any search."""

import json

import pytest

from flowccl.cli import main

WEIGHT = {"name": "w", "shape": [4, 6], "dtype": "bfloat16", "mesh": "m", "placements": ["Shard(0)"]}


def layout_file(path, *tensors, ranks=(0, 1)):
    meshes = {"m": {"ranks": list(ranks)}}
    path.write_text(json.dumps({"format": "flowccl-layout", "version": 1, "meshes": meshes, "tensors": list(tensors)}))
    return str(path)


@pytest.mark.parametrize(
    ("tensors", "ranks", "message"),
    [
        ([WEIGHT | {"shape": [6, 4]}], (2, 3), "tensor w: its shape is [4, 6] in the source layout and [6, 4] in the"),
        ([WEIGHT | {"name": "v"}], (2, 3), "tensor v is in the target layout, but not in the source layout"),
        (
            [{"name": "w", "shape": [4, 6], "dtype": "bfloat16", "ranges": [[2, 0, 30], [2, 20, 48]]}],
            (2, 3),
            "b.json: tensor w: the ranges 0 to 30 and 20 to 48 of rank 2 overlap",
        ),
        ([WEIGHT], (2, 9), "the target layout names rank 9, but dgx1 has 8 GPUs: ranks 0 to 7"),
        ([WEIGHT | {"placements": ["Shard(2)"]}], (2, 3), "b.json: tensor w: Shard(2), but its shape [4, 6] has only"),
        (
            [WEIGHT | {"dtype": "float16"}],
            (2, 3),
            "tensor w: is bfloat16 in the source layout and float16 in the target",
        ),
        ([WEIGHT], (0, 1), "every rank already has what it wants; no plan is needed"),
    ],
)
@pytest.mark.parametrize("command", ["synth", "compare"])
def test_layouts_that_do_not_fit_exit_with_2(tmp_path, capsys, command, tensors, ranks, message):
    source = layout_file(tmp_path / "a.json", WEIGHT)
    target = layout_file(tmp_path / "b.json", *tensors, ranks=ranks)
    assert main([command, "dgx1", "reshard", "--from", source, "--to", target, "--quiet"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.count("\n") == 1
    assert found.err.replace(f"{tmp_path}/", "").startswith(f"flowccl: error: {message}")


def test_files_that_are_missing_or_broken_exit_with_2(tmp_path, capsys):
    source = layout_file(tmp_path / "a.json", WEIGHT)
    (tmp_path / "b.json").write_text("{")
    for target in (tmp_path / "b.json", tmp_path / "none.json", tmp_path):
        assert main(["synth", "dgx1", "reshard", "--from", source, "--to", str(target), "--quiet"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
