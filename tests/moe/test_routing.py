"""Dispatch and combine: bytes by formula, the mirror image, placements with copies, files, bad inputs."""

import importlib.util
import json
from math import comb
from pathlib import Path

import numpy as np
import pytest

from benchmarks.moe_workloads import Shape, routing
from flowccl.cli import main
from flowccl.errors import DemandError, FileError
from flowccl.moe.expert_parallel import ExpertParallel
from flowccl.moe.hot_experts import expert_changes
from flowccl.moe.planner import Planner
from flowccl.moe.routing import ExpertPlacement, dispatch_blocks, load_placement, load_routing
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify

EXPERTS, TOP_K, TOKENS, TOKEN_BYTES = 64, 8, 512, 7168


@pytest.mark.parametrize("hosts", [2, 4])
def test_a_token_crosses_to_a_host_once(hosts: int) -> None:
    chosen = list(routing(Shape(8 * hosts), EXPERTS, TOP_K, TOKENS))
    layer = ExpertParallel(machine(f"dgx_h100:{hosts}"), ExpertPlacement.even(EXPERTS, 8 * hosts), TOKEN_BYTES)
    plan = layer.dispatch(chosen)
    chance = 1 - comb(EXPERTS - EXPERTS // hosts, TOP_K) / comb(EXPERTS, TOP_K)
    wanted = hosts * 8 * TOKENS * (hosts - 1) * chance * TOKEN_BYTES
    crossing = plan.messages.bytes[plan.messages.first[1] : plan.messages.first[2]].sum()
    assert crossing == pytest.approx(wanted, rel=0.01)
    assert (plan.chunks.bytes % TOKEN_BYTES == 0).all()  # no token is divided


def test_dispatch_and_combine_are_valid_and_mirror_images() -> None:
    layer = ExpertParallel(machine("dgx_h100:2"), ExpertPlacement.even(16, 16), 1024)
    chosen = list(routing(Shape(16), 16, 4, 64))
    there, back = layer.dispatch(chosen), layer.combine(chosen)
    for schedule in (there.schedule(), back.schedule()):
        assert verify(schedule) == []
        assert schedule.finish_us == pytest.approx(there.finish_us)
    assert back.schedule().demand.reduces
    assert back.finish_us == there.finish_us  # the machine equals its reversal


def test_tokens_of_two_experts_on_one_gpu_are_sent_once() -> None:
    layer = ExpertParallel(machine("rail:2x2"), ExpertPlacement(((2,), (2,), (3,), (0,))), 100)
    chosen = [np.array([[0, 1], [0, 2], [3, 3]]), *(np.zeros((0, 2), dtype=np.int64) for _ in range(3))]
    plan = layer.dispatch(chosen)
    rows = {(int(s), tuple(plan.blocks.to[plan.blocks.to_ptr[b] : plan.blocks.to_ptr[b + 1]].tolist())):
            int(plan.blocks.bytes[b]) for b, s in enumerate(plan.blocks.source)}  # fmt: skip
    assert rows == {(0, (2,)): 100, (0, (2, 3)): 100}


def test_copies_of_an_expert_serve_the_nearest_gpus() -> None:
    layer = ExpertParallel(machine("rail:2x2"), ExpertPlacement(((0, 2),)), 100)
    chosen = [np.zeros((5, 1), dtype=np.int64) for _ in range(4)]
    plan = layer.dispatch(chosen)
    assert plan.blocks.source.tolist() == [1, 3]
    assert plan.blocks.to.tolist() == [0, 2]


def test_files(tmp_path: Path) -> None:
    chosen = routing(Shape(4), 8, 2, 6)
    np.save(tmp_path / "r.npy", chosen)
    np.save(tmp_path / "flat.npy", chosen.reshape(-1, 2))
    np.savez(tmp_path / "r.npz", *chosen)
    for name in ("r.npy", "flat.npy", "r.npz"):
        assert all((a == b).all() for a, b in zip(load_routing(tmp_path / name, 4), chosen, strict=True))
    (tmp_path / "p.json").write_text(json.dumps([0, 0, 1, 1, 2, 2, 3, [3, 0]]))
    assert load_placement(tmp_path / "p.json").gpus[-1] == (3, 0)


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04 cut off", b""])
@pytest.mark.parametrize("name", ["r.npy", "r.npz"])
def test_files_that_are_not_of_numpy(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FileError, match=rf"{name}: not numbers in a file of numpy \(npy or npz\)$"):
        load_routing(tmp_path / name, 4)
    with pytest.raises(FileError, match=r"missing.npy: cannot be read: No such file or directory$"):
        load_routing(tmp_path / "missing.npy", 4)


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="the extra parquet is not installed")
def test_parquet(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    chosen = routing(Shape(4), 8, 2, 6)
    parquet.write_table(Table.from_pydict({"indices": chosen.reshape(-1, 2).tolist()}), tmp_path / "r.parquet")
    assert all((a == b).all() for a, b in zip(load_routing(tmp_path / "r.parquet", 4), chosen, strict=True))


def failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["synth", "rail:2x2", "dispatch", *arguments]) == 2
    return capsys.readouterr().err.strip()


def test_bad_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, other = tmp_path / "r.npy", tmp_path / "other.npy"
    np.save(good, routing(Shape(4), 8, 2, 6))
    size = ("--token-bytes", "64")
    np.save(other, np.zeros((3, 6, 2), dtype=np.int64))
    assert "must have the shape [4, tokens, k]" in failing(capsys, "--routing", str(other), *size)
    np.save(other, np.full((4, 6, 2), -1))
    assert "expert numbers must be >= 0, got -1" in failing(capsys, "--routing", str(other), *size)
    np.save(other, np.full((4, 6, 2), np.nan))
    assert "expert numbers must be whole numbers" in failing(capsys, "--routing", str(other), *size)
    assert "which no gpu has; the placement has 3 experts" in failing(
        capsys, "--routing", str(good), "--experts", "3", *size
    )
    assert "token bytes must be 1 to 16,777,216, got 1000000000000" in failing(
        capsys, "--routing", str(good), "--token-bytes", "1TB"
    )
    assert failing(capsys, "--routing", str(good)) == (
        "flowccl: error: dispatch needs --routing FILE and --token-bytes BYTES"
    )
    placement = tmp_path / "p.json"
    placement.write_text("[0, 9]")
    assert "expert 1 is on rank 9; the ranks are 0 to 3" in failing(
        capsys, "--routing", str(good), "--placement", str(placement), *size
    )


def test_negative_and_huge_counts_in_a_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.csv"
    for entry, words in (("-5", "must not be negative"), ("nan", "cannot read 'nan'"), ("1TB", "is too large")):
        path.write_text("\n".join(["0," + entry, "1,0"]))
        assert main(["synth", "rail:2x1", "alltoallv", "--matrix", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_an_expert_that_no_gpu_has() -> None:
    with pytest.raises(DemandError, match="no gpu has expert 1"):
        ExpertParallel(machine("rail:2x2"), ExpertPlacement(((0,), ())), 100)
    layer = ExpertParallel(machine("rail:2x2"), ExpertPlacement.even(4, 4), 100)
    with pytest.raises(DemandError, match="routing: has 1 arrays, the machine has 4 gpus"):
        dispatch_blocks(layer._planner.layout, [np.zeros((1, 1), dtype=np.int64)], layer.placement, 100)


def test_copying_a_hot_expert_helps() -> None:
    planner = Planner(machine("dgx_h100:2"))
    chosen = [np.zeros((512, 1), dtype=np.int64) for _ in range(16)]
    changes = expert_changes(planner, chosen, ExpertPlacement.even(16, 16), 7168)
    copied = next(change for change in changes if change.words.startswith("copying expert 0 (100.0%"))
    assert copied.after_us < 0.7 * copied.before_us
