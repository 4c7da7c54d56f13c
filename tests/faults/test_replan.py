import json

import numpy as np
import pytest

from flowccl import machine, save_schedule, synthesize, verify, with_faults
from flowccl.catalog.files import load_catalog
from flowccl.cli import main
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import InputError
from flowccl.faults.repair import FaultyMachine
from flowccl.faults.replan import replan
from flowccl.faults.substitution import substituted
from flowccl.faults.tree_repair import repaired_trees
from flowccl.lowered import lower_for
from flowccl.runtimes.profiles import PROFILES
from flowccl.topology.faults import find_faults


@pytest.fixture(scope="module")
def gathered():
    return synthesize(machine("full:4"), "allgather", 4_096_000, chunks=4, steps=10, time_limit_s=600).schedule


@pytest.mark.parametrize("name", ["allgather", "alltoall", "reduce_scatter", "allreduce"])
def test_a_repaired_schedule_is_valid_on_the_faulty_machine(name):
    schedule = synthesize(machine("full:4"), name, 4_096_000, chunks=2, steps=4, time_limit_s=600).schedule
    result = replan(schedule, without=["gpu0 <-> gpu1"], steps=1)
    faulty = with_faults(schedule.topology, without=["gpu0 <-> gpu1"])
    assert result.schedule.topology.fingerprint == faulty.fingerprint
    assert verify(result.schedule) == []
    assert result.affected > 0
    assert result.late_us is None
    assert result.after_us >= result.bound.us


def test_a_plan_that_does_not_use_the_link_stays_as_it_is(gathered):
    """Two of four GPUs exchange data; the link between the two others is lost."""
    topology = gathered.topology
    demand = Demand.from_chunks(
        "custom",
        4,
        [
            Chunk(bytes=1_000_000, sources=(0,), destinations=(1,)),
            Chunk(bytes=1_000_000, sources=(1,), destinations=(0,)),
        ],
    )
    schedule = synthesize(topology, demand, method="direct", steps=1).schedule
    used = {topology.link_name(int(link)) for link in schedule.routes.link}
    assert used == {"gpu0 -> gpu1", "gpu1 -> gpu0"}
    result = replan(schedule, without=["gpu2 <-> gpu3"], steps=0)
    assert result.affected == 0
    assert result.after_us == result.before_us
    assert result.schedule.start_ps.tolist() == schedule.start_ps.tolist()


def test_a_plan_on_a_slow_link_is_late_until_it_is_replanned(gathered):
    result = replan(gathered, slow=["gpu0 -> gpu1=1GB/s"], steps=0)
    assert result.late_us > result.before_us
    assert result.after_us <= result.late_us


def test_a_slow_link_is_avoided(gathered):
    """The link carries 1 of 3 blocks into gpu1; at a hundredth of its rate, the other links carry it instead."""
    rate = gathered.topology.links[0].bandwidth_GBps / 100
    result = replan(gathered, slow=[f"gpu0 -> gpu1={rate}GB/s"], steps=0)
    assert result.late_us > 10 * result.before_us
    assert result.after_us < 3 * result.before_us
    assert verify(result.schedule) == []


@pytest.fixture(scope="module")
def reduced():
    return synthesize(
        machine("dgx_h100:2"), "allreduce", 1_024_000, method="greedy", chunks=1, steps=1, runtime="mscclpp"
    ).schedule


@pytest.mark.parametrize("fault", [{"without": ["gpu0 <-> rail0"]}, {"slow": ["gpu9 -> rail1=10Gb/s"]}])
@pytest.mark.parametrize("repair", [lambda m: repaired_trees(m, False), lambda m: repaired_trees(m, True), substituted])
def test_only_chunks_that_use_the_faulty_link_change(reduced, repair, fault):
    faulty = FaultyMachine(reduced, find_faults(reduced.topology, **fault))
    made = repair(faulty)
    assert verify(made) == []
    assert made.topology.fingerprint == with_faults(reduced.topology, **fault).fingerprint
    hit = set(reduced.chunk[faulty.affected].tolist())
    assert 0 < len(hit) < len(reduced.demand)

    def paths(schedule, new_links):
        rows = enumerate(schedule.chunk.tolist())
        return sorted((chunk, new_links(i), bool(schedule.reduce[i])) for i, chunk in rows if chunk not in hit)

    assert paths(made, lambda i: made.routes.links(int(made.route[i]))) == paths(reduced, faulty.new_links)


def test_a_gpu_without_a_nic_sends_through_the_others_of_its_host(reduced):
    faulty = FaultyMachine(reduced, find_faults(reduced.topology, without=["gpu0 <-> rail0"]))
    made = repaired_trees(faulty, True)
    assert made.finish_ps < 2 * reduced.finish_ps
    result = replan(reduced, without=["gpu0 <-> rail0"])
    assert result.after_us >= result.bound.us
    assert result.program_us >= result.after_us
    assert result.to_json()["program_us"] == result.program_us


@pytest.fixture(scope="module")
def switched():
    """An in-network plan: each GPU of a host owns a part of the data, whose chunks are one message."""
    return synthesize(machine("dgx_h100:2"), "allreduce", 1_024_000, method="in-network", chunks=1, steps=1).schedule


@pytest.fixture(scope="module")
def nvls():
    """A plan with operations of switches that MSCCL++ has."""
    return synthesize(
        machine("dgx_h100:2"), "allreduce", 1_024_000, method="nvls", chunks=1, steps=2, runtime="mscclpp"
    ).schedule


@pytest.mark.parametrize("together", [True, False])
def test_chunks_of_messages_are_substituted_together_or_one_by_one(switched, together):
    faulty = FaultyMachine(switched, find_faults(switched.topology, without=["gpu0 <-> rail0"]))
    hit = np.isin(switched.chunk, switched.chunk[faulty.affected])
    assert 0 < hit.sum() < len(switched)
    made = substituted(faulty, together)
    assert verify(made) == []
    assert len(made) == len(switched)
    moved = np.isin(made.chunk, switched.chunk[faulty.affected])
    assert np.all((made.message[moved] >= 0) == together)
    assert np.all(made.message[~moved] >= 0)
    assert made.finish_ps < 2 * switched.finish_ps


def test_a_plan_with_operations_of_switches_is_planned_again(nvls):
    result = replan(nvls, slow=["gpu0 -> rail0=10GBps"])
    assert verify(result.schedule) == []
    assert result.program_us == pytest.approx(lower_for(result.schedule, PROFILES["mscclpp"]).program_us, rel=0.01)
    trees = synthesize(machine("dgx_h100:2"), nvls.demand, method="hierarchical", steps=1, runtime="mscclpp").schedule
    assert result.program_us <= replan(trees, slow=["gpu0 -> rail0=10GBps"]).program_us


def test_a_forked_process_gives_the_same_plan(nvls):
    alone = replan(nvls, without=["gpu0 <-> rail0"])
    beside = replan(nvls, without=["gpu0 <-> rail0"], in_parallel=True)
    assert beside.schedule == alone.schedule
    assert beside.to_json() == alone.to_json()


def test_chunks_that_have_no_equal_are_not_substituted(gathered):
    assert substituted(FaultyMachine(gathered, find_faults(gathered.topology, without=["gpu0 <-> gpu1"]))) is None


def test_bad_input(gathered, tmp_path, capsys):
    with pytest.raises(InputError, match="nothing to do"):
        replan(gathered)
    save_schedule(gathered, tmp_path / "ag.json")
    words = ["replan", str(tmp_path / "ag.json")]
    cut = [word for peer in (1, 2, 3) for word in ("--without", f"gpu0 <-> gpu{peer}")]
    assert main([*words, *cut]) == 2
    assert "disconnects gpu0 from gpu1, gpu2, gpu3" in capsys.readouterr().err
    assert main([*words, "--without", "gpu0 <-> gpu9"]) == 2
    assert "has no node 'gpu9'" in capsys.readouterr().err
    assert main([*words, "--without", "gpu0 <-> gpu1", "--out", str(tmp_path)]) == 2
    assert "is a folder; give a file name" in capsys.readouterr().err


def test_the_command_on_a_schedule_and_on_a_catalog(gathered, built, tmp_path, capsys):
    save_schedule(gathered, tmp_path / "ag.json")
    words = ["--without", "gpu0 <-> gpu1", "--steps", "0"]
    assert main(["replan", str(tmp_path / "ag.json"), *words, "--out", str(tmp_path / "new.json")]) == 0
    assert "new plan" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "new.json")]) == 0
    capsys.readouterr()
    assert main(["replan", str(built), *words, "--out", str(tmp_path / "new"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["plan"] for row in rows] == [plan.name for plan in load_catalog(built).plans]
    assert main(["catalog", "check", str(tmp_path / "new"), "--machine", "ring:4", *words[:2]]) == 0
    old, new = load_catalog(built), load_catalog(tmp_path / "new")
    assert new.machine.fingerprint == with_faults(machine("ring:4"), without=["gpu0 <-> gpu1"]).fingerprint
    assert [rule.bytes for rule in new.rules] == [rule.bytes for rule in old.rules]
    assert all(plan.program_us >= plan.lower_bound_us > 0 for plan in new.plans)
    assert "planned again" in new.rules[0].reason
    assert main(["replan", str(built), *words, "--out", str(tmp_path / "new")]) == 2
    assert "must be a new or an empty folder" in capsys.readouterr().err
