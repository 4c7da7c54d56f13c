import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowccl.adapters.reversal import links_back
from flowccl.bounds.lower_bound import lower_bound
from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import DemandError, ScheduleError
from flowccl.schedule.compact import COMPACT, CompactSchedule
from flowccl.schedule.files import load_compact, load_schedule, save_compact
from flowccl.synthesis.compact import synthesize_compact, too_large
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.compact import symmetric_bound, verify_whole
from flowccl.verifier.verify import verify


def made(name: str, kind: str, size: int = 10**7 + 3) -> CompactSchedule:
    return synthesize_compact(machine(name), kind, size, time_limit_s=2.0).compact


@pytest.mark.parametrize("kind", COMPACT)
@pytest.mark.parametrize("name", ["ring:5", "torus:3x4", "dgx_a100:2", "hypercube:3"])
def test_saved_loaded_verified_and_expanded(name: str, kind: str, tmp_path: Path) -> None:
    compact = made(name, kind)  # blocks of unequal size
    save_compact(compact, tmp_path / "one.json.gz")
    again = load_compact(tmp_path / "one.json.gz", machine(name))
    assert verify_whole(again) == []
    assert again.one == compact.one
    whole = again.expanded()
    assert verify(whole) == []
    assert whole.demand == collective(kind, machine(name).num_gpus, 10**7 + 3, again.pieces)
    assert len(whole) == len(again)
    assert whole.finish_us <= again.finish_us


@pytest.mark.parametrize("kind", COMPACT)
@pytest.mark.parametrize("name", ["ring:6", "torus:4x4", "dgx_a100:2", "hypercube:4", "dgx_h100:4"])
def test_the_bound_of_symmetric_machines_is_valid_and_close(name: str, kind: str) -> None:
    topology = machine(name)
    whole = lower_bound(topology, collective(kind, topology.num_gpus, 10**9))
    assert 0.8 * whole.ps <= symmetric_bound(topology, kind, 10**9).ps <= whole.ps


def test_the_verifier_finds_a_missing_transfer_and_another_size(tmp_path: Path) -> None:
    compact = made("torus:3x3", "allgather")
    save_compact(compact, tmp_path / "one.json")
    value = json.loads((tmp_path / "one.json").read_text())
    value["size_bytes"] *= 2
    (tmp_path / "size.json").write_text(json.dumps(value))
    assert [v.kind for v in verify_whole(load_compact(tmp_path / "size.json"))] == ["destination"]
    value = json.loads((tmp_path / "one.json").read_text())
    value["schedule"]["transfers"] = {key: column[:-1] for key, column in value["schedule"]["transfers"].items()}
    (tmp_path / "less.json").write_text(json.dumps(value))
    assert any(v.kind == "destination" for v in verify_whole(load_compact(tmp_path / "less.json")))
    value = json.loads((tmp_path / "one.json").read_text())
    value["schedule"]["transfers"]["start_ps"][-1] = 0
    (tmp_path / "early.json").write_text(json.dumps(value))
    assert verify_whole(load_compact(tmp_path / "early.json"))


@pytest.mark.parametrize(
    ("key", "wrong", "words"),
    [
        ("order", [9], "are no symmetries of"),
        ("order", [], "positive whole number"),
        ("collective", "reduce", "must be allgather"),
    ],
)
def test_bad_files(key: str, wrong: object, words: str, tmp_path: Path) -> None:
    save_compact(made("torus:3x3", "allgather"), tmp_path / "one.json")
    value = json.loads((tmp_path / "one.json").read_text()) | {key: wrong}
    (tmp_path / "bad.json").write_text(json.dumps(value))
    with pytest.raises(ScheduleError, match=words):
        load_compact(tmp_path / "bad.json")


def test_other_commands_expand_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compact = made("torus:3x3", "alltoall")
    save_compact(compact, tmp_path / "one.json")
    assert load_schedule(tmp_path / "one.json", machine("torus:3x3")) == compact.expanded()
    assert main(["show", str(tmp_path / "one.json")]) == 0
    assert f"{len(compact)} of" in capsys.readouterr().out
    with pytest.raises(ScheduleError, match="another machine"):
        load_schedule(tmp_path / "one.json", machine("torus:4x4"))
    large = synthesize_compact(machine("torus:80x80"), "allgather", 10**9, time_limit_s=1.0).compact
    with pytest.raises(ScheduleError, match="too many to expand"):
        large.expanded()


def test_the_verifier_checks_reductions_in_compact_form() -> None:
    """A contribution that is left out, and a second phase that starts too early, are found."""
    compact = made("torus:3x3", "allreduce")
    assert verify_whole(compact) == []
    one = compact.one
    first = np.flatnonzero(one.reduce)
    keep = np.delete(np.arange(len(one)), first[:1])
    less = replace(
        one, chunk=one.chunk[keep], route=one.route[keep], start_ps=one.start_ps[keep], reduce=one.reduce[keep]
    )
    assert any(v.kind == "destination" for v in verify_whole(replace(compact, one=less)))
    early = replace(one, start_ps=np.where(one.reduce, one.start_ps, one.start_ps // 2))
    assert verify_whole(replace(compact, one=early))


def test_a_reduction_needs_links_back() -> None:
    """Without a link back for every link, an allgather does not run backwards."""
    links = tuple(Link(src=i, dst=(i + 1) % 4, bandwidth_GBps=10.0) for i in range(4))
    one_way = Topology("one-way ring", tuple(Node(name=f"gpu{i}") for i in range(4)), links)
    assert links_back(one_way) is None
    with pytest.raises(DemandError, match="reduce_scatter needs a link back for every link; one-way ring has not"):
        synthesize_compact(one_way, "reduce_scatter", 4000)
    torus = machine("torus:3x4")
    back = links_back(torus)
    assert back is not None
    assert np.array_equal(torus.link_src[back], torus.link_dst)
    assert np.array_equal(np.sort(back), np.arange(len(torus.links)))


@pytest.mark.parametrize("kind", COMPACT)
def test_hundreds_of_gpus_are_near_the_bound(kind: str) -> None:
    result = synthesize_compact(machine("torus:20x20"), kind, 10**9, time_limit_s=5.0)
    assert result.gap <= 0.02


def test_unsupported_machines_and_collectives() -> None:
    with pytest.raises(DemandError, match="looks the same from every gpu"):
        synthesize_compact(machine("line:4"), "allgather", 1000)
    with pytest.raises(DemandError, match="is for allgather, alltoall, reduce_scatter, allreduce, not for broadcast"):
        synthesize_compact(machine("ring:4"), "broadcast", 1000)
    assert too_large(machine("torus:50x50"), "all_gather")
    assert not too_large(machine("torus:4x4"), "allgather")


def test_the_command_line_writes_and_verifies_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "c.json.gz")
    assert main(["synth", "torus:50x50", "allgather", "--size", "1GB", "--out", out, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["form"] == "compact"
    assert told["transfers"] == 2500 * 2499
    assert told["gap"] < 0.01
    assert main(["verify", out]) == 0
    assert "VALID: 2499 transfers of gpu0's data" in capsys.readouterr().out
    assert main(["synth", "ring:4", "allgather", "--size", "1MB", "--compact"]) == 0
    assert "compact form" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPACT)
@pytest.mark.parametrize(("name", "gap"), [("torus:200x200", 0.001), ("dgx_h100:512", 0.02)])
def test_thousands_of_gpus(name: str, gap: float, kind: str, tmp_path: Path) -> None:
    size, gap = (4 * 10**10, 0.03) if kind == "alltoall" else (10**9, gap)
    result = synthesize_compact(machine(name), kind, size, gap=gap, time_limit_s=30.0)
    assert result.gap <= gap
    save_compact(result.compact, tmp_path / "c.json.gz")
    assert verify_whole(load_compact(tmp_path / "c.json.gz")) == []
    assert np.all(result.compact.one.start_ps >= 0)
