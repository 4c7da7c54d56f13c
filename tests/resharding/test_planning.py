"""Plans: the cases of docs/reshard.md against the lower bound and the baselines, faults, helpers, stages, files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowccl import load_plan, load_schedule, machine, save_plan, verify
from flowccl.bounds.lower_bound import lower_bound
from flowccl.cli import main
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError, ScheduleError
from flowccl.resharding.baselines import BASELINES, baseline_us
from flowccl.resharding.bound import reshard_bound
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout
from flowccl.resharding.layout_files import save_layout
from flowccl.resharding.plan import check_plan
from flowccl.resharding.planning import reshard
from flowccl.resharding.routing import source_sets
from flowccl.resharding.running import RankRun, check_on_numpy
from flowccl.resharding.staging import staging_bytes
from flowccl.resharding.steps import step_table
from flowccl.resharding.traffic import TrafficClass
from flowccl.topology.faults import with_faults
from tests.resharding import cases

LARGE = {
    "fsdp to replicas": (cases.trainers_to_replicas, None, 0.05),
    "fsdp to replicas, lost NIC": (cases.trainers_to_replicas, "gpu3 <-> rail3", 0.08),
    "one to 15": (cases.one_to_all, None, 0.05),
    "one to 15, lost NIC": (cases.one_to_all, "gpu2 <-> net", 0.08),
    "pipeline to tensor parallel": (cases.stages_to_tensor_parallel, None, 0.05),
    "pipeline to tensor parallel, next host": (lambda: cases.stages_to_tensor_parallel(same=False), None, 0.05),
    "pipeline to tensor parallel, next host, lost NIC": (
        lambda: cases.stages_to_tensor_parallel(same=False),
        "gpu3 <-> rail3",
        0.08,
    ),
    "64 to 64": (cases.many_to_many, None, 0.05),
    "64 to 64, lost NIC": (cases.many_to_many, "gpu67 <-> rail3", 0.08),
    "64 to one engine of 64": (lambda: cases.many_to_many(replicas=False), None, 0.05),
    "64 to one engine of 64, lost NIC": (lambda: cases.many_to_many(replicas=False), "gpu67 <-> rail3", 0.08),
}


def check_case(make, lost, most):
    topology, source, target = make()
    if lost is not None:
        topology = with_faults(topology, without=[lost])
    result = reshard(topology, source, target, time_limit_s=100)  # a busy computer needs more than the usual 2 s
    assert verify(result.result.schedule) == []
    assert 0 <= result.gap <= most
    for name, us in baseline_us(topology, result.plan.traffic).items():
        assert result.finish_us <= us, name
    check_nics(result)
    return result


def check_nics(result):
    """Every NIC into or out of a host that needs nearly all the time of the bound is busy most of the time."""
    topology, use = result.result.schedule.topology, result.result.metrics.link_use
    found = result.plan.traffic
    classes, counted = [found.classes[number] for number in found.moved], 0
    for host in {node.host for node in topology.nodes if node.host}:
        inside = np.array([node.host == host for node in topology.nodes])
        for mine in (inside, ~inside):  # into the host, and out of it
            links = np.flatnonzero(mine[topology.link_dst] & ~mine[topology.link_src])
            crossing = [
                one.bytes for one in classes if mine[list(one.missing)].any() and not mine[list(one.sources)].any()
            ]
            if not len(links) or sum(crossing) / topology.link_GBps[links].sum() * 1e-3 < 0.95 * result.result.bound.us:
                continue
            counted += len(links)
            assert min(use[k] for k in links.tolist()) > 0.8, host
    assert counted or len({node.host for node in topology.nodes if node.kind == "gpu"}) == 1


@pytest.mark.parametrize("name", ["one to 15, lost NIC"])
def test_cases_are_close_to_the_bound_and_before_the_baselines(name):
    check_case(*LARGE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_all_cases_are_close_to_the_bound_and_before_the_baselines(name):
    check_case(*LARGE[name])


@pytest.mark.slow
def test_every_nic_of_the_bound_is_used():
    """The bound counts all NICs out of the trainers' host, and all into the two engines."""
    result = check_case(cases.trainers_to_replicas, None, 0.05)
    topology, use = result.result.schedule.topology, result.result.metrics.link_use
    names = [node.name for node in topology.nodes]
    nics = [(k, link) for k, link in enumerate(topology.links) if "rail" in names[link.src] + names[link.dst]]
    used = {(names[link.src], names[link.dst]): use[k] for k, link in nics}
    assert min(used[f"gpu{rank}", f"rail{rank}"] for rank in range(8)) > 0.9
    assert min(used[f"rail{rank % 8}", f"gpu{rank}"] for rank in range(8, 24)) > 0.9


def test_any_replica_may_send_and_the_bound_knows_it():
    """Two ranks have the data, and a third one wants it, over one link from each: half comes from each."""
    topology, whole = machine("full:3:bandwidth=1GB/s:latency=0us"), (Placement(),)
    source = Layout((TensorLayout("w", (10**6,), 4, "float32", Mesh((2,), (0, 1)), whole),))
    target = Layout((TensorLayout("w", (10**6,), 4, "float32", Mesh((1,), (2,)), whole),))
    result = reshard(topology, source, target, gap=0)
    assert result.finish_us == pytest.approx(2000, rel=1e-3)
    assert result.result.bound.us == pytest.approx(2000, rel=1e-6)
    one = Demand.from_chunks("custom", 3, [Chunk(bytes=4 * 10**6, sources=(0,), destinations=(2,))])
    assert lower_bound(topology, one).us == pytest.approx(2000, rel=1e-3)  # through the idle gpu1


def test_the_bound_of_replicas_in_the_target_host_is_that_of_the_missing_bytes():
    classes = [TrafficClass((0, 8), (1,), 10**9), TrafficClass((0,), (9,), 10**9)]
    topology = machine("dgx_h100:2")
    bound = reshard_bound(topology, source_sets(topology, classes), classes)
    assert bound.us >= 10**9 / 400e9 * 1e6  # only the second class enters host1, over 8 NICs


def test_helpers_relay_only_if_they_may():
    topology = machine("line:3:bandwidth=1GB/s")
    sides = ((1,), [0], (Placement(),)), ((1,), [2], (Placement(),))
    source, target = cases.layouts(1, (1000, 1000), *sides)
    assert verify(reshard(topology, source, target, helpers=(1,)).result.schedule) == []
    with pytest.raises(DemandError, match=r"gpu0 cannot reach gpu2 on line:3.*; add links or helpers"):
        reshard(topology, source, target, helpers=())


def test_ranks_beyond_the_machine_are_refused():
    _, source, target = cases.trainers_to_replicas(1, (8, 8))
    with pytest.raises(DemandError) as error:
        reshard(machine("dgx_h100:2"), source, target)
    assert str(error.value) == "the target layout names rank 23, but dgx_h100:2 has 16 GPUs: ranks 0 to 15"


def test_stages_fit_into_the_bucket_and_cost_little():
    topology, source, target = cases.trainers_to_replicas()
    staged = reshard(topology, source, target, gap=0.05, bucket_bytes=32 * 10**6)
    assert staged.staging_bytes == staging_bytes(staged.plan) <= 32 * 10**6
    assert staged.result.schedule.finish_us < staged.finish_us <= 1.10 * staged.result.schedule.finish_us


def test_relayed_slices_fill_the_memory_that_is_planned_for_them(monkeypatch):
    """On a ring ranks relay; the memory has a place for as many slices as are kept at once, and no more."""
    left: dict[int, int] = {}

    def unpack(run, step, buffers, original=RankRun.unpack):
        original(run, step, buffers)
        left[run.rank] = min(left.get(run.rank, len(run.free)), len(run.free))

    monkeypatch.setattr(RankRun, "unpack", unpack)
    sides = (((4,), range(4), (cases.shard(dim),)) for dim in (0, 1))
    source, target = cases.layouts(2, (400, 400), *sides)
    plan = replace(reshard(machine("ring:4"), source, target).plan, slices=6)
    assert check_on_numpy(plan)[0] == 0
    assert left == {0: 0, 1: 0, 2: 0, 3: 0}
    assert min(step_table(plan).slots[0]) > 0


@pytest.mark.parametrize("tensors", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_tensors_plan_like_ten(tensors):
    mesh, engines = Mesh((4,), tuple(range(4))), Mesh((2, 4), tuple(range(8, 16)))
    few, many = [], []
    for rows, count in ((few, 10), (many, tensors)):
        for side, placements in ((mesh, (Placement(0),)), (engines, (Placement(), Placement(1)))):
            shape = (1000, 10_000 // (count // 10) * 8)
            rows.append(Layout(cases.tensors("w", count, shape, side, placements)))
    plans = [reshard(machine("dgx_h100:2"), *pair, gap=0.05) for pair in (few, many)]
    assert len(plans[0].plan.traffic.classes) == len(plans[1].plan.traffic.classes) == 16
    assert plans[1].gap <= 0.05


def test_plan_files_keep_everything_and_notice_changes(tmp_path):
    topology, source, target = cases.stages_to_tensor_parallel(count=1, shape=(80, 10))
    plan = replace(reshard(topology, source, target).plan, slices=2)
    path = tmp_path / "plan.json"
    save_plan(plan, path)
    again = load_plan(path)
    assert (again.source, again.target, again.schedule) == (source, target, plan.schedule)
    assert np.array_equal(again.cls, plan.cls)
    assert (again.slices, again.fingerprint) == (2, plan.fingerprint)
    assert load_schedule(path) == plan.schedule
    assert check_on_numpy(again) == (0, 4 * 80 * 10 * 2)
    value = json.loads(path.read_text())
    value["target"]["tensors"][0]["shape"] = [80, 12]
    path.write_text(json.dumps(value))
    with pytest.raises(ScheduleError, match=r"target_fingerprint: is .* changed after the plan was made"):
        load_plan(path)


def test_a_plan_that_leaves_bytes_out_is_refused():
    topology, source, target = cases.stages_to_tensor_parallel(count=1, shape=(80, 10))
    plan = reshard(topology, source, target).plan
    check_plan(plan)
    wrong = plan.cls.copy()
    wrong[0] = wrong[1]
    with pytest.raises(ScheduleError):
        check_plan(replace(plan, cls=wrong))


@pytest.fixture
def files(tmp_path):
    _, source, target = cases.stages_to_tensor_parallel(count=1, shape=(80, 10))
    names = [str(tmp_path / name) for name in ("a.json", "b.json", "plan.json")]
    save_layout(source, names[0])
    save_layout(target, names[1])
    return names


def test_the_command_line_plans_verifies_runs_and_compares(files, capsys):
    a, b, plan = files
    asked = ["reshard", "--from", a, "--to", b, "--quiet"]
    assert main(["synth", "dgx_h100:1", *asked, "--bucket", "1KB", "--out", plan]) == 0
    text = capsys.readouterr().out
    assert "reshard, 6.4 KB in 4 tensors, 8 ranks to 8 ranks" in text
    assert main(["verify", plan]) == 0
    assert main(["run", plan]) == 0
    assert "targets          6.4 KB, all right" in capsys.readouterr().out
    value = json.loads(Path(plan).read_text())
    value["chunks"]["class"][0] += 1
    Path(plan).write_text(json.dumps(value))
    assert main(["verify", plan]) == 2
    capsys.readouterr()
    assert main(["compare", "dgx_h100:1", *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["baselines_us"]) == set(BASELINES)
    assert found["plan"]["staged_us"] <= min(found["baselines_us"].values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "1MB"], "--size: not an option of reshard; the layouts say what moves"),
        (["--for", "mscclpp"], "--for mscclpp: runtimes load collectives of all GPUs on one buffer with equal blocks"),
        (["--helpers", "99"], "--helpers: rank 99 is not a gpu; ranks are 0 to 7"),
        (["--bucket", "none"], "--bucket: cannot read 'none'"),
    ],
)
def test_bad_options_exit_with_2(files, capsys, words, message):
    a, b, _ = files
    assert main(["synth", "dgx_h100:1", "reshard", "--from", a, "--to", b, "--quiet", *words]) == 2
    assert capsys.readouterr().err.startswith(f"flowccl: error: {message}")


def test_options_of_reshard_are_for_reshard(files, capsys):
    assert main(["synth", "dgx1", "reshard", "--quiet"]) == 2
    assert "reshard needs two layouts" in capsys.readouterr().err
    assert main(["synth", "dgx1", "allgather", "--size", "1MB", "--to", files[1]]) == 2
    assert "--to: only for reshard" in capsys.readouterr().err
