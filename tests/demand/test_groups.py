"""Groups, late data, byte matrices and tenants: schedules, and messages for invalid input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.demand.files import demand_from_json, demand_to_json
from flowccl.demand.groups import group_collective, in_group, parse_ranks, with_late
from flowccl.demand.matrix import load_matrix
from flowccl.demand.tenants import Tenant, combined_demand
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.files import load_schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.synthesis.tenants import synthesize_tenants
from flowccl.topology.builders import line
from flowccl.topology.files import read_machine
from flowccl.verifier.verify import verify


def test_ranks() -> None:
    assert parse_ranks("0-2,5", 8) == (0, 1, 2, 5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-8", "group: rank 8 is not a gpu; ranks are 0 to 7"),
        ("1,2,1", "group: rank 1 is named twice"),
        ("3-1", "group: the range 3-1 runs backwards; write 1-3"),
        ("x", "group: 'x' is not a rank or a range of ranks; write for example 0-7,16-23"),
    ],
)
def test_bad_ranks(text: str, message: str) -> None:
    with pytest.raises(DemandError) as error:
        parse_ranks(text, 8)
    assert str(error.value) == message


def test_a_group_of_one() -> None:
    with pytest.raises(DemandError, match="group: needs at least 2 gpus, got 1"):
        group_collective("allgather", 100, [3], 8)


def test_root_must_be_in_the_group() -> None:
    with pytest.raises(DemandError, match="broadcast: root 0 is not in the group"):
        group_collective("broadcast", 100, [1, 3], 8, root=0)


def test_json_round_trip() -> None:
    demand = with_late(group_collective("allreduce", 1000, [1, 3, 4], 8, relays=(5,)), {3: 7})
    again = demand_from_json(json.loads(json.dumps(demand_to_json(demand))))
    assert again == demand
    assert again.forbidden == (0, 2, 6, 7)
    assert again.num_ranks == 3


@pytest.mark.parametrize("method", ["greedy", "reroute"])
def test_no_chunk_passes_forbidden_gpus(method: str) -> None:
    topology = read_machine("torus:4x4")
    demand = group_collective("allreduce", 10**6, range(8), 16, relays=())
    schedule = next(
        s for s in load_method(method)(Problem(topology, demand), SearchContext.with_limit(9.0)) if s is not None
    )
    assert verify(schedule) == []
    free = next(
        load_method("greedy")(
            Problem(topology, in_group(collective("alltoall", 8, 8000), range(8), 16)), SearchContext.with_limit(1.0)
        )
    )
    assert free is not None
    kinds = {v.kind for v in verify(type(free)(**{**vars_of(free), "demand": _without_relays(free.demand)}))}
    assert kinds <= {"relay"}


def vars_of(schedule: object) -> dict[str, object]:
    names = ("topology", "routes", "chunk", "route", "start_ps", "reduce", "method")
    return {name: getattr(schedule, name) for name in names}


def _without_relays(demand: object) -> object:
    from dataclasses import replace

    return replace(demand, relays=())  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["allgather", "allreduce", "reduce"])
@pytest.mark.parametrize("method", ["greedy", "reroute", "ring"])
def test_schedules_wait_for_late_data(name: str, method: str) -> None:
    topology = read_machine("dgx1")
    demand = with_late(collective(name, 8, 10**4), {3: 20_000_000})
    schedule = next(
        s for s in load_method(method)(Problem(topology, demand), SearchContext.with_limit(9.0)) if s is not None
    )
    assert verify(schedule) == []
    on_time = next(
        s
        for s in load_method(method)(Problem(topology, collective(name, 8, 10**4)), SearchContext.with_limit(9.0))
        if s is not None
    )
    assert schedule.finish_ps <= on_time.finish_ps + 20_000_000
    early = type(schedule)(**{**vars_of(on_time), "demand": demand})
    assert "source" in {v.kind for v in verify(early)} or name != "allgather"
    assert verify(early)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3\n", "the byte matrix must be square, got 2 rows of 1 or 2 entries"),
        ("0,-5\n1,0\n", "entry [0][1]"),
        ("0,x\n1,0\n", "entry [0][1]"),
    ],
)
def test_bad_matrix(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bytes.csv"
    path.write_text(text)
    with pytest.raises(DemandError) as error:
        load_matrix(path)
    assert message in str(error.value)


def test_matrix_with_an_empty_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bytes.csv"
    path.write_text("0,2MB,1KB\n0,0,0\n5,0,0\n")
    assert main(["synth", "ring:3", "alltoallv", "--matrix", str(path), "--json", "--steps", "3"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]


def test_tenants_in_one_schedule() -> None:
    topology = read_machine("torus:4x4")

    def two(count: int) -> list[Tenant]:
        demand = collective("allgather", 16, 10**6, count)
        return [Tenant("light", demand, 1.0), Tenant("heavy", demand, 10.0)]

    found = synthesize_tenants(topology, two, time_limit_s=30, steps=8, method="greedy")
    assert verify(found.result.schedule) == []
    assert found.finish_us["heavy"] < found.finish_us["light"]
    assert found.weighted_sum_us == pytest.approx(10 * found.finish_us["heavy"] + found.finish_us["light"])


def test_tenants_on_disjoint_halves_finish_as_early_as_alone() -> None:
    """With relays, both tenants would use each other's links; without relays, they do not interfere."""
    topology = read_machine("torus:4x4")
    groups = tuple(range(8)), tuple(range(8, 16))

    def halves(count: int) -> list[Tenant]:
        demands = [group_collective("allgather", 10**6, group, 16, chunks=count) for group in groups]
        return [Tenant(f"from {demand.group[0]}", demand) for demand in demands if demand.group]

    few: dict[str, Any] = {"time_limit_s": 60.0, "steps": 2, "method": "reroute"}
    alone = synthesize(topology, lambda count: replace(halves(count)[0].demand, relays=()), **few)
    found = synthesize_tenants(topology, halves, **few)
    assert found.weighted_sum_us <= 2 * alone.schedule.finish_us
    assert all(share.relays is None for share in found.result.schedule.demand.tenants)
    assert verify(found.result.schedule) == []


def test_tenants_start_at_their_start_times() -> None:
    demand = combined_demand(
        [Tenant("a", collective("broadcast", 4, 100)), Tenant("b", collective("reduce", 4, 100), 1, 5)]
    )
    assert demand.available_ps.tolist() == [0, 5, 5, 5, 5]


def test_the_verifier_checks_the_relays_of_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a ring of four, the tenant of 0 and 1 may not use 2 and 3; the verifier reports transfers that do."""
    path, out = tmp_path / "tenants.json", tmp_path / "out.json"
    rows = [
        {"name": "pair", "collective": "allgather", "size": "1MB", "group": "0-1", "relay": "none"},
        {"name": "all", "collective": "allreduce", "size": "1MB", "weight": 3},
    ]
    path.write_text(json.dumps(rows))
    command = ["synth", "ring:4", "--tenants", str(path), "--json", "--steps", "4", "--out", str(out)]
    assert main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    schedule = load_schedule(out)
    assert [(share.name, share.weight) for share in schedule.demand.tenants] in (
        [("pair", 1.0), ("all", 3.0)],
        [("all", 3.0), ("pair", 1.0)],
    )
    pair = next(share for share in schedule.demand.tenants if share.name == "pair")
    assert (pair.group, pair.relays, pair.forbidden(4)) == ((0, 1), (), (2, 3))
    assert shown["weighted_bound_us"] <= shown["weighted_sum_us"]
    assert verify(schedule) == []
    strict = tuple(replace(share, group=(0, 1), relays=()) for share in schedule.demand.tenants)
    wrong = replace(schedule, demand=replace(schedule.demand, tenants=strict))
    assert {violation.kind for violation in verify(wrong)} == {"relay"}


def test_the_weighted_lower_bound_of_two_equal_tenants() -> None:
    """On one link of 10 GB/s, one tenant completes after at least 1 us, the other after at least 2 us."""

    def two(count: int) -> list[Tenant]:
        demand = collective("broadcast", 2, 10_000, count)
        return [Tenant("a", demand, 1.0), Tenant("b", demand, 3.0)]

    found = synthesize_tenants(line(2, bandwidth_GBps=10, latency_us=0), two, time_limit_s=9, steps=4)
    assert found.weighted_bound_us == pytest.approx(3 * 1 + 1 * 2)
    assert found.weighted_sum_us == pytest.approx(5, rel=1e-3)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"collective": "allgather", "size": "1MB", "weight": 0}], "[0].weight: must be > 0, got 0"),
        ([{"weight": 1}], "[0]: has no chunks; give either a collective with a size, or a demand"),
        ([], "must be a list of one or more tenants"),
        ([{"collective": "allgather", "size": "1MB", "group": "0-9"}], "[0].group: rank 9 is not a gpu"),
        ([{"collective": "allgather", "size": "1MB", "group": [1]}], "group: needs at least 2 gpus, got 1"),
        ([{"collective": "allgather", "size": "1MB", "group": [1, 1]}], "group: rank 1 is named twice"),
        ([{"collective": "allgather", "size": "1MB", "relay": 3}], "[0].relay: must be all, none or ranks such as"),
        (
            [{"name": "a", "collective": "allgather", "size": size} for size in ("1MB", "2MB")],
            "tenant name 'a' is used twice; names must differ",
        ),
    ],
)
def test_bad_tenants(tmp_path: Path, rows: object, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps(rows))
    assert main(["synth", "ring:4", "--tenants", str(path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["allgather", "--size", "1MB", "--group", "2"], "group: needs at least 2 gpus, got 1"),
        (["allgather", "--size", "1MB", "--group", "0-4"], "--group: rank 4 is not a gpu; ranks are 0 to 3"),
        (["allgather", "--size", "1MB", "--relay", "none"], "--relay requires --group"),
        (["allgather", "--size", "1MB", "--late", "gpu9=1us"], "--late gpu9=1us: ring:4 has no GPU 'gpu9'"),
        (["allgather", "--size", "1MB", "--late", "gpu1"], "--late gpu1: write GPU=TIME, for example gpu0=20us"),
        (["alltoallv"], "alltoallv and --matrix must be used together"),
        (["allgather", "--size", "1MB", "--group", "0,2", "--relay", "none"], "gpu0 cannot reach gpu2"),
        (["ring", "--size", "1MB"], "unknown collective 'ring'"),
    ],
)
def test_bad_command_lines(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "ring:4", *arguments]) == 2
    assert message in capsys.readouterr().err
