"""Plans for runtimes: layouts between which a collective moves the bytes, and all others refused before the search."""

from dataclasses import replace

import pytest

from flowccl import machine
from flowccl.cli import main
from flowccl.errors import DemandError, InputError
from flowccl.resharding.for_runtime import collective_for
from flowccl.resharding.layout import Layout, TensorLayout, TensorRange
from flowccl.resharding.layout_files import save_layout
from flowccl.resharding.traffic import traffic
from flowccl.runtimes.profiles import PROFILES
from tests.resharding.cases import R, layouts, shard

EIGHT = range(8)
SHARDS, WHOLE = ((8,), EIGHT, (shard(0),)), ((8,), EIGHT, (R,))
COLUMNS = ((8,), EIGHT, (shard(1),))


def named(source, target):
    return collective_for(traffic(source, target), machine("dgx_h100:1"), PROFILES["mscclpp"])


def test_collectives_are_recognized():
    assert named(*layouts(1, (1024, 512), SHARDS, WHOLE)) == ("allgather", 2**20, 0)
    assert named(*layouts(1, (8, 8, 4096), SHARDS, COLUMNS)) == ("alltoall", 2**16, 0)
    assert named(*layouts(1, (1024, 512), ((1,), [3], (R,)), WHOLE)) == ("broadcast", 2**20, 3)
    others = ((7,), [0, 1, 2, 4, 5, 6, 7], (R,))
    assert named(*layouts(1, (1024, 512), ((1,), [3], (R,)), others)) == ("broadcast", 2**20, 3)


def swapped():
    """An allgather in which rank 0 has the second block, and rank 1 the first."""
    _, target = layouts(1, (1024, 512), SHARDS, WHOLE)
    owner = [1, 0, 2, 3, 4, 5, 6, 7]
    parts = tuple(TensorRange(rank, k * 2**17, (k + 1) * 2**17) for k, rank in enumerate(owner))
    return Layout((TensorLayout("w0", (1024, 512), 2, "bfloat16", ranges=parts),)), target


@pytest.mark.parametrize(
    "pair",
    [
        layouts(2, (1024, 512), SHARDS, WHOLE),  # two tensors are two buffers
        layouts(1, (1001, 512), SHARDS, WHOLE),  # blocks of other sizes
        layouts(1, (1024, 512), SHARDS, COLUMNS),  # the rows of a block do not follow each other
        layouts(1, (1024, 512), ((4,), range(4), (shard(0),)), ((4,), range(4, 8), (shard(0),))),
        layouts(1, (1024, 512), ((2,), [0, 1], (R,)), WHOLE),  # two ranks have the bytes
        swapped(),
    ],
)
def test_other_layouts_are_refused(pair):
    with pytest.raises(DemandError, match=r"^--for mscclpp: runtimes load collectives of all GPUs on one buffer"):
        named(*pair)


def test_sizes_that_no_program_serves_are_refused():
    with pytest.raises(DemandError) as error:
        named(*layouts(1, (8, 3), SHARDS, WHOLE))
    assert str(error.value) == (
        "--for mscclpp: this resharding is the allgather of 48 bytes, which is not a multiple of 128 "
        "(16 for each GPU), so no program serves it"
    )


def test_a_runtime_without_the_collective_is_refused():
    found = traffic(*layouts(1, (1024, 512), ((1,), [3], (R,)), WHOLE))
    gone = {name: limit for name, limit in PROFILES["mscclpp"].limits.collectives.items() if name != "broadcast"}
    runtime = replace(PROFILES["mscclpp"], limits=replace(PROFILES["mscclpp"].limits, collectives=gone))
    with pytest.raises(InputError, match="mscclpp does not support broadcast; it supports"):
        collective_for(found, machine("dgx_h100:1"), runtime)


@pytest.fixture
def planned(tmp_path):
    def plan(source, target, *words):
        names = [str(tmp_path / name) for name in ("a.json", "b.json", "plan.json")]
        save_layout(source, names[0])
        save_layout(target, names[1])
        asked = ["--from", names[0], "--to", names[1], "--quiet", "--out", names[2], "--time-limit", "1"]
        return main(["synth", "dgx_h100:1", "reshard", *asked, *words]), names[2]

    return plan


@pytest.mark.slow
def test_a_plan_for_mscclpp_is_exported_and_runs(planned, tmp_path, capsys):
    code, plan = planned(*layouts(1, (1024, 512), SHARDS, WHOLE), "--for", "mscclpp")
    assert code == 0
    assert "on mscclpp" in capsys.readouterr().out
    program = str(tmp_path / "program.json")
    assert main(["export", plan, "--to", "mscclpp", "--out", program]) == 0
    assert main(["check-export", program, "--to", "mscclpp"]) == 0
    capsys.readouterr()
    assert main(["run", plan]) == 0
    assert "all right" in capsys.readouterr().out


def test_other_plans_are_not_exported_to_mscclpp(planned, tmp_path, capsys):
    code, plan = planned(*layouts(1, (64, 64), ((4,), range(4), (shard(0),)), ((4,), range(4, 8), (shard(1),))))
    assert code == 0
    capsys.readouterr()
    assert main(["export", plan, "--to", "mscclpp", "--out", str(tmp_path / "program.json")]) == 2
    assert capsys.readouterr().err == (
        f"flowccl: error: {plan}: a plan between layouts runs with flowccl.torch.reshard; mscclpp loads only "
        "those that `flowccl synth MACHINE reshard --for mscclpp` made\n"
    )


def test_a_program_of_a_runtime_has_no_buckets(planned, capsys):
    assert planned(*layouts(1, (1024, 512), SHARDS, WHOLE), "--for", "mscclpp", "--bucket", "1MB")[0] == 2
    assert capsys.readouterr().err == (
        "flowccl: error: --bucket: a program of mscclpp runs whole; leave --bucket or --for out\n"
    )
