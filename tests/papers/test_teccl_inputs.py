"""TE-CCL's input files."""

import json
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.errors import FileError
from flowccl.papers.teccl.inputs import read_teccl_input

DATA = Path(__file__).parent.parent / "data" / "teccl"


def test_ndv2_input():
    found = read_teccl_input(DATA / "ndv2_input.json")
    assert (found.topology.name, found.demand.collective, found.demand.size_bytes) == ("ndv2:2", "allgather", 10**9)
    assert found.method == "milp"
    assert found.options == {
        "epoch": "fast", "epochs": "search", "objective": "epochs", "latency_threshold": 0.1, "early_stop": 1e-4,
    }  # fmt: skip
    assert found.time_limit_s == 7200


def test_amd_sample():
    found = read_teccl_input(DATA / "amd_sample.json")
    assert (found.topology.name, found.demand.size_bytes) == ("mi250:1 of TE-CCL", 4 * 10**9)
    assert {link.latency_us for link in found.topology.links} == {0.0}  # the file has no alpha
    assert (found.options["epochs"], found.options["objective"]) == (40, "paper")
    assert "lower: ignored, has no equivalent here" in found.notes


@pytest.mark.parametrize("name", ["ndv2_input", "dgx2_sample", "amd_sample"])
def test_the_files_run_unchanged(name, capsys):
    assert main(["synth", "--from-teccl", str(DATA / f"{name}.json"), "--json", "--time-limit", "4"]) == 0
    out = capsys.readouterr()
    result = json.loads(out.out)
    assert result["verified"]
    assert {"ndv2_input": 35, "dgx2_sample": 4, "amd_sample": 14}[name] >= result["details"]["epochs"]
    assert "ignored, settings of Gurobi" in out.err


def write(tmp_path, **changes):
    data = json.loads((DATA / "ndv2_input.json").read_text())
    for key, value in changes.items():
        part, name = key.split("__")
        data[part][name] = value
    path = tmp_path / "input.json"
    path.write_text(json.dumps(data))
    return path


def test_more_of_the_fields(tmp_path):
    found = read_teccl_input(
        write(
            tmp_path,
            TopologyParams__name="DGX2",
            InstanceParams__collective=2,
            InstanceParams__switch_copy=False,
            InstanceParams__epoch_type=2,
            InstanceParams__epoch_multiplier=2,
            InstanceParams__num_chunks=2,
        )
    )
    assert (found.method, found.demand.collective, found.demand.pieces) == ("lp", "alltoall", 2)
    assert not any(node.copies for node in found.topology.nodes if not node.stores)
    assert found.options["epoch"] == "10000.0us"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"TopologyParams__name": "DGX9"}, "name must be one of DGX1, DGX2, NDv2, AMD, Mesh, got .DGX9"),
        ({"TopologyParams__chassis": 0}, "chassis: must be a whole number, 1 to 1000, got 0"),
        ({"TopologyParams__chunk_size": 0}, "chunk_size must be at least a byte"),
        ({"InstanceParams__collective": 3}, r"collective must be 1 \(allgather\) or 2 \(alltoall\), got 3"),
        ({"InstanceParams__epoch_type": 4}, "epoch_type must be 1"),
        ({"InstanceParams__epoch_multiplier": 0}, "epoch_multiplier: must be a number above 0, got 0"),
    ],
)
def test_bad_files(tmp_path, changes, words):
    with pytest.raises(FileError, match=words):
        read_teccl_input(write(tmp_path, **changes))


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(FileError, match="not an input file of TE-CCL; TopologyParams and InstanceParams are required"):
        read_teccl_input(path)
