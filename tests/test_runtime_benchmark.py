"""The benchmark `runtime` and its textbook algorithms: rows, summaries, and schedules that are valid."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import runtime
from benchmarks.textbook import PATHS, Machine, textbook_schedules
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.carrying import Carrier
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify

MSCCLPP = PROFILES["mscclpp"]


def result(row: runtime.Row, finish_us: float = 12.0, **more: Any) -> dict[str, Any]:
    """A result of a row: 20 % above the bound, with an earlier or a later textbook algorithm."""
    return {
        **dict(zip(("machine", "collective", "size_bytes"), row.key, strict=True)),
        "finish_us": finish_us,
        "lower_bound_us": 10.0,
        "gap": finish_us / 10.0 - 1,
        "method": "greedy",
        "chunks": 2,
        "width": 4,
        "protocol": "LL",
        "threadblocks": 16,
        "program_us": None,
        "baselines_us": {"ring": 30.0, "PXN": 12.05},
        **more,
    }


def test_rows_are_distinct_and_their_machines_can_be_read():
    rows = list(runtime.all_rows())
    assert len(rows) == len({row.key for row in rows}) == 14 * 4 * 3
    gpus = [runtime.Row(name, "allgather", "64KiB").topology.num_gpus for name in runtime.MACHINES]
    assert gpus == [8, 16, 16, 8, 16, 32, 64, 16, 16, 16, 16, 8, 40, 40]


def test_lines_and_summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Rows that are later than a textbook algorithm, apart from their program, or below the bound are named."""
    special = {
        "dgx1/allgather/64KiB": {"program_us": 12.1},
        "dgx1/allgather/4MiB": {"finish_us": 13.0, "gap": 0.3, "program_us": 14.0},
        "dgx1/alltoall/64KiB": {"finish_us": 9.0, "gap": -0.1},
    }
    monkeypatch.setattr(runtime, "measure", lambda row, *rest: result(row, **special.get(str(row), {})))
    monkeypatch.setattr(runtime, "_warm_up", lambda: True)
    file = str(tmp_path / "rt.json")
    picture = tmp_path / "rt.svg"
    assert runtime.main(["--rows", "dgx1/*/64KiB,4MiB", "--json", file, "--plot", str(picture)]) == 1
    out = capsys.readouterr().out
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert "8 rows, 0 failed" in out
    assert "later than a textbook algorithm by more than 0.5 %: 1 rows: dgx1/allgather/4MiB" in out
    assert "schedule and program differ by more than 1 %: 1 rows: dgx1/allgather/4MiB" in out
    assert "  6 rows have no program (column -), so their times could not be compared" in out
    assert "below the lower bound: 1 rows: dgx1/alltoall/64KiB" in out
    assert runtime.main(["--rows", "dgx1/reduce_scatter/*", "--json", file]) == 0
    with pytest.raises(SystemExit, match=r"has rows with --sms None; give the same, or another file"):
        runtime.main(["--rows", "dgx1/*/64KiB", "--json", file, "--sms", "16"])


def test_unknown_rows(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        runtime.main(["--rows", "dgx9/*/64KiB"])
    assert "--rows: 'dgx9' is not one of dgx1, ndv2:2" in capsys.readouterr().err


def test_textbook_alltoall_sends_few_messages_over_the_nic():
    """On two hosts of four GPUs: 4 messages from each GPU, 1 of each GPU, or 1 of each pair of hosts."""
    topology = used_by(machine("rail:2x4"), MSCCLPP)
    found = {}
    for draft in textbook_schedules(topology, "alltoall", 8 * 1024):
        if draft.demand.pieces == 1:
            hosts = Machine(topology, 1).place
            first = draft.timing.root_node[draft.leader == range(len(draft))]
            last = draft.timing.end_node[draft.leader == range(len(draft))]
            far = [hosts[a][0] != hosts[b][0] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
            found[draft.method] = sum(far)
    assert set(found) == set(PATHS)
    assert found["PXN"] == found["rail first"] == 8
    assert found["one message per pair of hosts"] == 2


@pytest.mark.parametrize(
    ("name", "collective"),
    [("dgx_h100:1", "allreduce"), *((name, c) for name in ("rail:2x2", "ring:4") for c in runtime.COLLECTIVES)],
)
def test_textbook_schedules_are_valid(name: str, collective: str):
    topology = used_by(machine(name), MSCCLPP, in_network=True)
    carrier, valid = Carrier(MSCCLPP, topology, 32), set()
    for draft in textbook_schedules(topology, collective, 64 * 1024):
        if draft.demand.pieces == 1:
            timed = carrier(draft)
            assert timed is not None, draft.method
            assert verify(timed) == []
            valid.add(draft.method)
    assert "direct" in valid
    assert collective == "alltoall" or "ring" in valid


# -- the bars of awkward machines -------------------------------------------------------------------------------------


def gap(name: str, collective: str, limit_s: float = 10.0) -> tuple[float, float]:
    """Gap and completion time of 256 MB on a machine of the benchmark, for MSCCL++."""
    topology = runtime.Row(name, collective, "256MiB").topology
    found = synthesize(topology, collective, 256_000_000, time_limit_s=limit_s, runtime="mscclpp", sms=runtime.SMS)
    return found.gap, found.schedule.finish_us


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "most"), [("allgather", 0.03), ("reduce_scatter", 0.03), ("allreduce", 0.08)])
def test_gpus_that_share_their_port_with_a_nic(collective: str, most: float):
    assert gap("pcie-hosts", collective)[0] <= most


@pytest.mark.slow
@pytest.mark.parametrize("collective", runtime.COLLECTIVES)
def test_a_nic_written_as_a_limit_or_as_a_switch(collective: str):
    with_limits, with_switches = gap("uneven-limits", collective)[1], gap("uneven", collective)[1]
    assert with_limits == pytest.approx(with_switches, rel=0.02)
