"""FLOWCCL_CATALOG in real processes whose program knows nothing about flowccl."""

import importlib.util
import os
import re
import shutil
import stat
from pathlib import Path

import pytest

from tests.torch.catalogs import small_catalog
from tests.torch.processes import Ended, launch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed"),
]
RANKS = 4
BY_PLAN = "allreduce on 4 ranks (cpu): plan allreduce-plan"


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_catalog(tmp_path_factory.mktemp("catalogs") / "plans", "full:4")


def job(kind: str, catalog: Path | str, ranks: int = RANKS, **env: str) -> Ended:
    return launch(["-m", "tests.torch.job_program", kind], ranks, FLOWCCL_CATALOG=str(catalog), **env)


def said(ended: Ended) -> list[str]:
    """The lines of flowccl."""
    return [line for line in ended.text.splitlines() if line.startswith("flowccl:")]


@pytest.mark.parametrize("backend", ["gloo", "", "flowccl"])
def test_an_unchanged_program_runs_by_plans_and_says_so(plans: Path, backend: str) -> None:
    ended = job("simple", plans, BACKEND=backend, FLOWCCL_LOG="info")
    assert ended.codes == [0] * RANKS
    assert "sum 10.0" in ended.text
    assert BY_PLAN in ended.text
    assert "flowccl: 1 calls by plans, 0 by the library" in ended.text


def test_without_the_variable_nothing_is_said(plans: Path) -> None:
    ended = job("simple", "", BACKEND="gloo", FLOWCCL_LOG="info")
    assert (ended.codes, said(ended)) == ([0] * RANKS, [])
    assert "sum 10.0 backend gloo" in ended.text


def test_the_module_does_the_same_where_autoloading_is_off(plans: Path) -> None:
    program = Path(__file__).with_name("job_program.py")
    off = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "FLOWCCL_LOG": "info", "BACKEND": "gloo"}
    for words in ([str(program)], ["-m", "tests.torch.job_program"]):
        ended = launch(["-m", "flowccl.torch", *words, "simple"], RANKS, FLOWCCL_CATALOG=str(plans), **off)
        assert ended.codes == [0] * RANKS
        assert BY_PLAN in ended.text


def test_a_second_init_a_fork_and_a_crossed_order(plans: Path) -> None:
    ended = job("twice", plans, FLOWCCL_LOG="info")
    assert ended.codes == [0] * RANKS
    assert ended.text.count("sum 10.0") == 2
    assert ended.text.count("flowccl: 2 calls by plans") == 1
    ended = job("crossed", plans)
    assert ended.text.count("crossed 4.0") == RANKS


def changed(plans: Path, folder: Path, text: str | None) -> Path:
    """A copy of a catalog in which the file of one schedule has another text, or is missing."""
    copied = shutil.copytree(plans, folder)
    if text is None:
        (copied / "allreduce-plan.json").unlink()
    else:
        (copied / "allreduce-plan.json").write_text(text)
    return copied


def test_a_catalog_that_cannot_be_used_is_one_line_and_the_library_serves(plans: Path, tmp_path: Path) -> None:
    unreadable = shutil.copytree(plans, tmp_path / "unreadable")
    (unreadable / "catalog.json").write_text('{"format": ')
    cases = {
        str(changed(plans, tmp_path / "damaged", "{}")): "was changed after the build",
        str(changed(plans, tmp_path / "without-plan", None)): "allreduce-plan.json: no such file",
        str(unreadable): "catalog.json",
        str(tmp_path / "missing"): "catalog.json: no such file",
        str(small_catalog(tmp_path / "other", "full:8")): "the catalog is for 8 ranks, the group has 4",
    }
    for catalog, reason in cases.items():
        ended = job("simple", catalog, BACKEND="gloo")
        assert ended.codes == [0] * RANKS
        assert "sum 10.0 backend gloo" in ended.text
        assert len(said(ended)) == 1
        assert reason in said(ended)[0]


def test_the_backend_by_its_name_without_the_variable_is_one_line_and_the_library_serves() -> None:
    ended = job("simple", "", BACKEND="flowccl")
    assert ended.codes == [0] * RANKS
    assert "sum 10.0" in ended.text
    assert said(ended) == ["flowccl: FLOWCCL_CATALOG is not set; the library serves all calls"]


def test_calls_without_a_plan_are_named_and_the_library_serves(tmp_path: Path) -> None:
    gathers = small_catalog(tmp_path / "gathers", "full:4", collectives=("allgather",))
    ended = job("simple", gathers, BACKEND="gloo", FLOWCCL_LOG="info")
    assert ended.codes == [0] * RANKS
    assert "sum 10.0 backend gloo" in ended.text
    reason = "the catalog has no rule for allreduce; it has allgather"
    assert [line for line in said(ended) if reason in line] == [
        f"flowccl: allreduce on 4 ranks (cpu): library gloo ({reason})"
    ]


def test_another_machine_is_refused(plans: Path) -> None:
    ended = job("simple", plans, BACKEND="gloo", FLOWCCL_MACHINE="ring:4")
    assert (ended.codes, len(said(ended))) == ([0] * RANKS, 1)
    assert "is for the machine full:4, which is not FLOWCCL_MACHINE=ring:4" in said(ended)[0]
    ended = job("simple", plans, BACKEND="gloo", LOCAL_WORLD_SIZE="2")
    assert "the catalog is for 4 ranks per host, the group has 2" in said(ended)[0]
    assert (ended.codes, len(said(ended))) == ([0] * RANKS, 1)
    ended = job("simple", plans, BACKEND="gloo", LOCAL_WORLD_SIZE="2", FLOWCCL_MACHINE="any", FLOWCCL_LOG="info")
    assert BY_PLAN in ended.text


def test_ranks_with_different_catalogs_or_none_use_the_library(plans: Path, tmp_path: Path) -> None:
    other = small_catalog(tmp_path / "other", "ring:4")
    words = ["-m", "tests.torch.job_program", "simple"]
    given = {"BACKEND": "gloo", "FLOWCCL_CATALOG": str(plans)}
    ended = launch(words, RANKS, {2: {"FLOWCCL_CATALOG": str(other)}}, **given)
    assert ended.codes == [0] * RANKS
    assert [line.split(": ", 2)[2] for line in said(ended)] == ["rank 2 has another catalog than rank 0"]
    ended = launch(words, RANKS, {0: {"FLOWCCL_CATALOG": ""}}, FLOWCCL_PATIENCE_S="1", **given)
    assert ended.codes == [0] * RANKS
    assert "rank 0 takes no part: is FLOWCCL_CATALOG set there?" in said(ended)[0]
    assert len(said(ended)) == 1


def test_a_read_only_folder_serves(plans: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(plans, tmp_path / "plans")
    for path in [*copied.iterdir(), copied]:
        path.chmod(stat.S_IREAD | (stat.S_IEXEC if path.is_dir() else 0))
    ended = job("simple", copied, BACKEND="gloo", FLOWCCL_LOG="info")
    copied.chmod(stat.S_IRWXU)
    assert ended.codes == [0] * RANKS
    assert BY_PLAN in ended.text
    assert sorted(path.name for path in copied.iterdir()) == sorted(path.name for path in plans.iterdir())


def test_a_killed_rank_ends_all_with_a_clear_line(plans: Path) -> None:
    ended = job("killed", plans)
    assert ended.codes[1] == -9
    assert [code for rank, code in enumerate(ended.codes) if rank != 1] == [3] * (RANKS - 1)
    lines = re.findall(r"rank (\d) ended after (\d+) s: flowccl: rank \d: allreduce on 4 ranks .* failed: ", ended.text)
    assert sorted(rank for rank, _ in lines) == ["0", "2", "3"]
    assert all(int(seconds) <= 25 for _, seconds in lines)


def test_groups_of_a_mesh_use_the_catalogs_of_their_sizes(plans: Path, tmp_path: Path) -> None:
    ended = job("mesh", f"{plans}{os.pathsep}{small_catalog(tmp_path / 'two', 'full:2', collectives=('allreduce',))}")
    assert ended.codes == [0] * RANKS
    assert "mesh [4.0, 3.0, 10.0]" in ended.text
    assert re.search(r"allreduce +2 +cpu +plan allreduce-plan +2 ", ended.text)
    assert re.search(r"allreduce +4 +cpu +plan allreduce-plan +1 ", ended.text)


def test_compiled_functions_and_models_use_plans(plans: Path) -> None:
    ended = job("compiled", plans)
    assert "compiled 13.0 by plans 1" in ended.text
    assert "async 13.0" in ended.text
    assert "gradient 2.5" in ended.text
    assert ended.codes == [0] * RANKS


def test_a_relative_folder_counts_from_where_the_program_was_started(plans: Path) -> None:
    ended = job("moved", os.path.relpath(plans), BACKEND="gloo", FLOWCCL_LOG="info")
    assert BY_PLAN in ended.text


def test_ddp_fsdp2_and_tensor_parallelism_have_the_losses_of_the_library(plans: Path) -> None:
    ours, gloos = job("parallel", plans), job("parallel", "")
    found = [re.findall(r"loss (\S+) (\S+)", ended.text) for ended in (ours, gloos)]
    assert len(found[0]) == len(found[1]) == 15
    for (name, mine), (other, theirs) in zip(*found, strict=True):
        assert name == other
        assert abs(float(mine) - float(theirs)) <= 1e-9
    for collective in ("allreduce", "allgather", "reduce_scatter"):
        assert re.search(rf"{collective} +4 +cpu +plan {collective}-plan", ours.text)


def test_random_sequences_of_calls_have_equal_results(plans: Path, tmp_path: Path) -> None:
    """FLOWCCL_SEQUENCES sequences, by default 100."""
    sequences = int(os.environ.get("FLOWCCL_SEQUENCES", "100"))
    for name, catalog in (("ours", str(plans)), ("theirs", "")):
        words = ["-m", "tests.torch.random_calls", "0", str(sequences), str(tmp_path / name)]
        patience = max(300, 2 * sequences)
        assert launch(words, RANKS, timeout=patience, FLOWCCL_CATALOG=catalog).codes == [0] * RANKS
    for rank in range(RANKS):
        mine = (tmp_path / f"ours.{rank}").read_text()
        assert len(mine.splitlines()) == sequences
        assert mine == (tmp_path / f"theirs.{rank}").read_text()


def test_torchcomms_calls_run_by_plans_and_are_right(plans: Path) -> None:
    ended = launch(["-m", "tests.torch.comms_program"], RANKS, FLOWCCL_CATALOG=str(plans))
    assert ended.codes == [0] * RANKS
    assert ended.text.count("right True") == RANKS
    assert re.search(r"allreduce +4 +cpu +plan allreduce-plan +2 ", ended.text)
