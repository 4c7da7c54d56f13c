import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowccl.bounds.lower_bound import lower_bound
from flowccl.cli import main
from flowccl.errors import DemandError, ScheduleError
from flowccl.schedule.compact import COMPACT
from flowccl.schedule.files import load_repaired, load_schedule, save_compact
from flowccl.schedule.repaired import RepairedPhase, RepairedSchedule
from flowccl.synthesis.compact import synthesize_compact
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from flowccl.verifier.repaired import repaired_bound, verify_repaired
from flowccl.verifier.verify import verify

LOST_NIC = {"without": ["gpu3 <-> rail3"]}
LOST_LINK = {"without": ["gpu0 <-> gpu1"]}


def made(topology: Topology, kind: str, size: int = 10**7 + 3) -> RepairedSchedule:
    found = synthesize_compact(topology, kind, size, time_limit_s=2.0)
    assert isinstance(found.compact, RepairedSchedule)
    assert found.gap >= 0
    return found.compact


@pytest.mark.parametrize("kind", COMPACT)
@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("torus:4x4", LOST_LINK),
        ("torus:3x4", {"without": ["gpu5 -> gpu6"]}),
        ("torus:4x5", {"slow": ["gpu0 <-> gpu1=5GBps"]}),
        ("hypercube:4", {"without": ["gpu3 <-> gpu2"]}),
        ("dgx_h100:4", LOST_NIC),
        ("dgx_h100:3", {"without": ["gpu3 -> nvswitch0"]}),
        ("dgx_a100:3", {"without": ["gpu3 -> rail3"], "slow": ["gpu12 <-> rail4=5GBps"]}),
        ("dgx_h100:18", {"without": ["gpu3 <-> rail3", "gpu20 -> rail4"]}),  # more routes than are tried
    ],
)
def test_saved_loaded_verified_and_expanded(name: str, faults: dict[str, list[str]], kind: str, tmp_path: Path) -> None:
    topology = with_faults(machine(name), **faults)
    repaired = made(topology, kind)  # blocks of unequal size
    save_compact(repaired, tmp_path / "one.json.gz")
    again = load_repaired(tmp_path / "one.json.gz", topology)
    assert verify_repaired(again) == []
    assert again.num_exceptions > 0
    whole = load_schedule(tmp_path / "one.json.gz", topology)
    assert verify(whole) == []
    assert len(whole) == len(again) == len(repaired)
    assert whole.finish_ps <= again.finish_ps
    assert repaired_bound(again).ps <= lower_bound(topology, whole.demand).ps * (1 + 1e-9)


def test_the_bound_counts_the_lost_links() -> None:
    """Seven cards of eight receive the data of a host, and three links of four that of a GPU."""
    size = 10**9
    for name, faults, part in (("dgx_h100:8", LOST_NIC, 8 / 7), ("torus:8x8", LOST_LINK, 4 / 3)):
        repaired = made(with_faults(machine(name), **faults), "allgather", size)
        whole = synthesize_compact(machine(name), "allgather", size, time_limit_s=2.0)
        assert repaired_bound(repaired).ps == pytest.approx(part * whole.bound.ps, rel=0.02)
        assert repaired.finish_ps <= 1.05 * repaired_bound(repaired).ps


def changed(repaired: RepairedSchedule, **columns: np.ndarray) -> RepairedSchedule:
    """The same with other columns of the exceptions."""
    phase = repaired.phases[0]
    own = replace(phase.exceptions, **{key: column for key, column in columns.items() if key != "owner"})
    owner = columns.get("owner", phase.owner)
    return replace(repaired, phases=(RepairedPhase(phase.whole, phase.topology, own, owner), *repaired.phases[1:]))


@pytest.mark.parametrize("kind", ["allgather", "alltoall"])
def test_the_verifier_finds_wrong_exceptions(kind: str) -> None:
    repaired = made(with_faults(machine("dgx_h100:4"), **LOST_NIC), kind)
    own, owner = repaired.phases[0].exceptions, repaired.phases[0].owner
    every = np.arange(len(own))

    def kinds(**columns: np.ndarray) -> set[str]:
        return {violation.kind for violation in verify_repaired(changed(repaired, **columns))}

    assert kinds() == set()
    rows = {name: getattr(own, name)[:-1] for name in ("chunk", "route", "start_ps", "reduce", "message")}
    rows |= {name: getattr(own, name)[:-1] for name in ("issuer", "receiver", "work_from_ps", "rate_GBps")}
    assert kinds(**rows, owner=owner[:-1]) == {"destination"}
    assert "start" in kinds(start_ps=np.where(every == 0, 0, own.start_ps))
    assert "source" in kinds(start_ps=np.full(len(own), own.start_ps.min()))
    assert "link" in kinds(start_ps=np.full(len(own), own.start_ps.min()))
    assert {"source", "destination"} & kinds(owner=(owner + 1) % 32)
    assert kinds(owner=owner + 32) == {"source"}
    assert {"source", "destination"} & kinds(chunk=np.roll(own.chunk, 1))


def test_the_verifier_checks_the_machine() -> None:
    faulty = with_faults(machine("torus:4x4"), **LOST_LINK)
    repaired = made(faulty, "allgather")
    phase = repaired.phases[0]
    other = with_faults(machine("torus:4x4"), without=["gpu1 <-> gpu2"])
    moved = RepairedPhase(phase.whole, other, replace(phase.exceptions, topology=other), phase.owner)
    assert {v.kind for v in verify_repaired(replace(repaired, phases=(moved,)))} == {"machine"}
    assert {v.kind for v in verify_repaired(replace(repaired, collective="allreduce"))} == {"machine"}
    assert {v.kind for v in verify_repaired(replace(repaired, size_bytes=10**7))} == {"destination"}


def test_bad_files(tmp_path: Path) -> None:
    faulty = with_faults(machine("torus:3x4"), **LOST_LINK)
    save_compact(made(faulty, "allgather"), tmp_path / "one.json")
    value = json.loads((tmp_path / "one.json").read_text())
    with pytest.raises(ScheduleError, match="another machine"):
        load_repaired(tmp_path / "one.json", machine("torus:3x4"))
    value["phases"][0]["owner"][0] = 12
    (tmp_path / "bad.json").write_text(json.dumps(value))
    with pytest.raises(ScheduleError, match="owner"):
        load_repaired(tmp_path / "bad.json")


def test_many_exceptions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowccl.methods.symmetric.repair._MOST", 10)
    with pytest.raises(DemandError, match="faults touch"):
        made(with_faults(machine("torus:4x4"), **LOST_LINK), "allgather")


def test_the_command_line_writes_verifies_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "c.json.gz")
    words = ["synth", "dgx_h100:3", "alltoall", "--size", "1MB", "--compact", "--without", "gpu3 <-> rail3"]
    assert main([*words, "--out", out]) == 0
    assert "but for" in capsys.readouterr().out
    assert main(["verify", out]) == 0
    assert "exceptions" in capsys.readouterr().out
    assert main(["show", out]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "faults", "kind", "gap"),
    [
        ("torus:100x100", LOST_LINK, "allgather", 0.01),
        ("dgx_h100:512", LOST_NIC, "alltoall", 0.01),
        ("dgx_h100:512", LOST_NIC, "allreduce", 0.2),
    ],
)
def test_thousands_of_gpus(name: str, faults: dict[str, list[str]], kind: str, gap: float) -> None:
    size = 4 * 10**10 if kind == "alltoall" else 10**9
    assert synthesize_compact(with_faults(machine(name), **faults), kind, size, time_limit_s=20.0).gap <= gap
