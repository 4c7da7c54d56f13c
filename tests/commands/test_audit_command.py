"""`flowccl audit`: the output, and its errors."""

import json

import pytest

from flowccl.cli import main

CALLS = "collective,bytes,ranks,count,microseconds\nallreduce,1MB,0-7,10,100\nallgather,256KB,0-3,5,0.1\n"


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text(CALLS)
    return path


def test_table_sentences_and_a_machine_that_does_not_fit(log, tmp_path, capsys):
    page = tmp_path / "job.html"
    assert main(["audit", str(log), "--machine", "dgx_h100:1", "--searched", "0", "--report", str(page)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Communication takes")
    assert "allreduce" in out
    assert "below bound  allgather of 256 KB took 0.1 us" in out
    assert "NVLink of gpu0, into: 450 GB/s must be at least" in out
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_json_and_what_if(log, capsys):
    options = ["--searched", "0", "--json", "--fit", "--what-if", "gpu3 <-> nvswitch0=100GB/s"]
    assert main(["audit", str(log), "--machine", "dgx_h100:1", *options]) == 0
    value = json.loads(capsys.readouterr().out)
    rows = {row["collective"]: row for row in value["rows"]}
    assert rows["allreduce"]["measured_us"] == 100
    assert rows["allreduce"]["calls"] == 10
    assert value["what_if"]["after"]["bound_us"] > value["what_if"]["before"]["bound_us"]
    assert [line["link"] for line in value["fit"]] == ["NVLink", "NIC"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--machine", "ring:4"], "the logs have rank 7, but ring:4 with this rank map has 4 GPUs"),
        (["--machine", "dgx_h100:1", "--rank-map", "0,0"], "--rank-map: names a GPU twice"),
        (["--machine", "dgx_h100:1", "--report", "job.pdf"], "--report job.pdf: the name must end in .html"),
        (["--machine", "dgx_h100:1", "--what-if", "gpu0 -> gpu1"], "write the bandwidth behind the link"),
        (["--machine", "dgx_h100:1", "--format", "tea"], "unknown format 'tea'"),
    ],
)
def test_errors_are_one_line_and_exit_with_2(log, capsys, options, message):
    assert main(["audit", str(log), "--searched", "0", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_nothing_readable(tmp_path, capsys):
    path = tmp_path / "empty.txt"
    path.write_text("nothing")
    assert main(["audit", str(path), "--machine", "dgx_h100:1"]) == 2
    assert "no call could be read" in capsys.readouterr().err
