"""`flowccl audit`: the output, and its errors."""

import gzip
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
        (["--machine", "dgx_h100:1", "--rank-map", "7-0"], "--rank-map: '7-0' goes backwards"),
        (["--machine", "dgx_h100:1", "--rank-map", "0-3"], "with this rank map has 4 GPUs"),
        (["--machine", "dgx_h100:1", "--rank-map", "0-8"], "--rank-map: GPU 8 does not exist"),
        (["--machine", "dgx_h100:1", "--without", "gpu9 <-> nvswitch0"], "has no node 'gpu9'"),
        (["--machine", "dgx_h100:1", "--without", "gpu0 <-> nvswitch0"], "disconnects gpu0"),
        (["--machine", "dgx_h100:1", "--what-if", "gpu0 <-> nvswitch0=fast"], "cannot read 'fast'"),
        (["--machine", "dgx_h100:1", "--catalog", "no/where/plans"], "--catalog no/where/plans: there is no folder"),
        (["--machine", "dgx_h100:1", "--worth", "5"], "--worth 5: a plan cannot save more than all of the time"),
        (["--machine", "dgx_h100:1", "--engine", "tea", "--catalog", "plans"], "tea"),
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


TWO_HOSTS = "collective,bytes,ranks,count,microseconds\n" + "".join(
    f"allreduce,{size},{ranks},10,{us}\n"
    for size, ranks, us in [
        ("16MB", "0-15", 400),
        ("256KB", "0-7", 30),
        ("1MB", "0-7", 40),
        ("4MB", "0-7", 60),
        ("64MB", "0-7", 480),
        ("1MB", "0 8", 60),
    ]
)


@pytest.fixture
def two_hosts(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text(TWO_HOSTS)
    return [str(path), "--machine", "dgx_h100:2", "--searched", "0"]


def test_without_a_nic_and_with_a_slow_one(two_hosts, capsys):
    changes = ["--what-if", "gpu3 <-> rail3=100Gb/s", "--without", "gpu0 <-> rail0"]
    assert main(["audit", *two_hosts, *changes]) == 0
    out = capsys.readouterr().out
    assert "what if      dgx_h100:2, gpu3 <-> rail3=100Gb/s, without gpu0 <-> rail0" in out
    assert "7 NICs of host0, into: 312.5 GB/s" in out  # six whole NICs and one of 12.5 GB/s
    change = next(line for line in out.splitlines() if line.startswith("lower bounds "))
    assert float(change.split("(")[1].split()[0]) > 1.05


def test_a_faster_link_lowers_the_bounds(two_hosts, capsys):
    assert main(["audit", *two_hosts, "--json", "--what-if", "gpu0 <-> rail0=800Gb/s"]) == 0
    changed = json.loads(capsys.readouterr().out)["what_if"]
    assert changed["after"]["bound_us"] < changed["before"]["bound_us"]


def test_the_rank_map_places_the_ranks(two_hosts, capsys):
    assert main(["audit", *two_hosts, "--json", "--rank-map", "8-15,0-7"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    inside = [row for row in rows if row["group"] == list(range(8))]
    assert any("gpu8" in row["bottleneck"] or "gpu9" in row["bottleneck"] for row in inside)
    mixed = ["--rank-map", "0,2,4,6,8,10,12,14,1,3,5,7,9,11,13,15"]  # the same ranks over both hosts
    assert main(["audit", *two_hosts, "--json", *mixed]) == 0
    spread = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["group"] == list(range(8))]
    slow, fast = (max(row["bound_us"] for row in some) for some in (spread, inside))
    assert slow > 1.2 * fast


def test_the_rank_map_may_be_a_file(two_hosts, tmp_path, capsys):
    (tmp_path / "map.txt").write_text("8-15\n0-7\n")
    assert main(["audit", *two_hosts, "--rank-map", str(tmp_path / "map.txt")]) == 0
    assert "gpu8" in capsys.readouterr().out


def test_fit_says_what_the_sizes_identify(two_hosts, capsys):
    assert main(["audit", *two_hosts, "--fit"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fit")]
    assert "us per hop (95 %:" in lines[0]
    assert "GB/s (95 %:" in lines[0]
    assert lines[1] == "fit          NIC      latency and bandwidth are not identified: sizes from 1 MB to 16 MB"


def test_messy_logs_are_read_together(tmp_path, capsys):
    (tmp_path / "calls.csv").write_text(
        "op,size,group,calls,us\nall_reduce,64MB,0-7,10,812.5\nmystery,4KB,8,3,12\nbarrier,0,8,2,9\n"
    )
    (tmp_path / "README.md").write_text("notes")
    (tmp_path / "more.csv.gz").write_bytes(gzip.compress(b"allgather,1MiB,8,4,55\nallgather,1MiB,8,4,?\n"))
    assert main(["audit", str(tmp_path), "--machine", "dgx_h100:1", "--searched", "0"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Communication takes 8.363 ms in these logs. The hardware allows ")
    assert "2 files (csv): 16 rows of unnamed ranks" in out
    assert "1 x unknown collective 'mystery'" in out
    assert "1 x damaged line: the microseconds cannot be read" in out
    assert "README.md: none of the known formats" in out


@pytest.mark.slow
def test_catalogs_are_built_for_the_rows_that_are_worth_it_and_only_those(log, tmp_path, capsys):
    """The allreduce took 100 us where a plan takes a fraction; the allgather was faster than any plan."""
    folder = tmp_path / "plans"
    common = ["audit", str(log), "--machine", "dgx_h100:1", "--time-limit", "1", "--json", "--catalog", str(folder)]
    assert main([*common, "--worth", "0.05"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [(plan["collective"], plan["size_bytes"], plan["error"]) for plan in value["catalogs"]] == [
        ("allreduce", 1_000_000, "")
    ]
    assert [path.name for path in folder.iterdir()] == ["allreduce-1000000-8gpus-0"]
    saved = next(row for row in value["rows"] if row["collective"] == "allreduce")
    assert saved["saved_us_per_step"] == pytest.approx((100 - saved["plan_us"]) * saved["calls_per_step"])
    assert main([*common, "--worth", "0.99"]) == 0
    assert json.loads(capsys.readouterr().out)["catalogs"] == []
