"""Plans on a real GPU, all ranks on one device: every element is right, and broken plans are reported."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from flowccl.errors import InputError
from flowccl.run.mscclpp.cases import PlanCase
from flowccl.run.mscclpp.launcher import HangError
from flowccl.run.mscclpp.plan_facts import read_plan
from flowccl.run.mscclpp.run_plans import GpuOptions, run_cases_of_plans
from flowccl.units import parse_bytes
from tests.gpu.markers import needs_gpu
from tests.gpu.plans import (
    COLLECTIVES,
    MACHINES,
    PLACES,
    SIZES,
    SMALL,
    TWO_HOPS,
    TYPES,
    DirectCase,
    GpuCase,
    LoopedCase,
    covering,
    looped,
    packets,
    possible_pairs,
    reduced,
    together,
    wide,
)


def test_the_selection_covers_every_pair_of_values() -> None:
    values = (MACHINES, COLLECTIVES, SIZES, PLACES, TYPES)
    rows = [(case.machine, case.collective, case.size, case.place, case.dtype) for case in covering()]
    assert len(rows) >= 64
    for i, j in combinations(range(5), 2):
        assert {(row[i], row[j]) for row in rows} == pairs(values, i, j)


def test_packets_cover_every_pair_of_values() -> None:
    values = (MACHINES[:3], COLLECTIVES, SMALL, PLACES, TYPES)
    rows = [(case.machine, case.collective, case.size, case.place, case.dtype) for case in packets()]
    for i, j in combinations(range(5), 2):
        assert {(row[i], row[j]) for row in rows} == pairs(values, i, j)


def pairs(values: tuple[tuple[str, ...], ...], i: int, j: int) -> set[tuple[str, str]]:
    return possible_pairs() if (i, j) == (1, 3) else {(a, b) for a in values[i] for b in values[j]}


def peers_of(block: Any, gpu: Any) -> int:
    """The most GPUs that a threadblock reaches over channels of one type."""
    types: dict[str, set[int]] = {}
    for used in block.get("channels", []):
        known = next(channel for channel in gpu["channels"] if channel["channel_type"] == used["channel_type"])
        reached = {known["connected_to"][k] for k in used["channel_ids"] if isinstance(known["connected_to"][k], int)}
        types.setdefault(used["channel_type"], set()).update(reached)
    return max((len(found) for found in types.values()), default=0)


@needs_gpu
@pytest.mark.parametrize("selection", [covering, packets])
def test_every_element_of_the_covering_selection_is_right(selection: Callable[[], list[GpuCase]]) -> None:
    by_ranks = defaultdict(list)
    for case in selection():
        made = PlanCase(str(case.plan()), parse_bytes(case.size), case.dtype, iterations=3, warmup=1)
        by_ranks[made.facts().ranks].append((case, made))
    wrong = {}
    for cases in by_ranks.values():
        rows = run_cases_of_plans([made for _, made in cases], GpuOptions(one_gpu=True))
        assert rows is not None
        for (case, _), row in zip(cases, rows, strict=True):
            timing = row.out_of_place or row.in_place
            assert timing is not None
            print(f"{case}: {timing.median_us:.1f} us, {timing.wrong} wrong")
            if timing.wrong:
                wrong[str(case)] = timing.wrong
    assert wrong == {}
    plans = [json.loads(case.plan().read_text()) for case in selection()]
    several = sum(
        any(peers_of(block, gpu) > 1 for gpu in plan["gpus"] for block in gpu["threadblocks"]) for plan in plans
    )
    with_packets = sum(plan["protocol"] == "LL" for plan in plans)
    print(f"{len(plans)} plans: in {several} a threadblock serves several peers, {with_packets} have packets")
    assert several >= 40 if selection is covering else with_packets >= 20


def test_plans_reduce_all_messages_at_once() -> None:
    for case in reduced():
        plan = json.loads(case.plan().read_text())
        several = {len(op["src_buff"]) for _, _, op in operations(plan) if op["name"] in ("re", "repkt")}
        assert several == {int(case.machine.removeprefix("full:"))}, case


@needs_gpu
@pytest.mark.parametrize("selection", [looped, reduced, wide, together])
def test_every_element_of_plans_without_a_search_is_right(
    selection: Callable[[], list[LoopedCase] | list[DirectCase]],
) -> None:
    cases = selection()
    made = [PlanCase(str(case.plan()), parse_bytes(case.size), case.dtype, iterations=3, warmup=1) for case in cases]
    ranks = {case: read_plan(case.plan).ranks for case in made}
    rows = [
        row
        for number in sorted(set(ranks.values()))
        for row in run_cases_of_plans([case for case in made if ranks[case] == number], GpuOptions(one_gpu=True))
    ]
    assert rows is not None
    wrong = {}
    for case, row in zip(cases, rows, strict=True):
        timing = row.out_of_place or row.in_place
        assert timing is not None
        print(f"{case}: {timing.median_us:.1f} us, {timing.wrong} wrong")
        if timing.wrong:
            wrong[str(case)] = timing.wrong
    assert wrong == {}


def broken(tmp_path: Path, change: Callable[[Any], None]) -> PlanCase:
    value = json.loads(GpuCase("dgx1", "allgather", "1MiB", "out", "float32").plan().read_text())
    change(value)
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(value))
    return PlanCase(str(path), 1 << 20, "float32", iterations=2, warmup=0)


def operations(plan: Any) -> list[tuple[list[Any], int, Any]]:
    """All operations of a plan, those in loops too: the list that has each one, its place there, and itself."""
    waiting = [block["ops"] for gpu in plan["gpus"] for block in gpu["threadblocks"]]
    found = []
    for ops in waiting:
        found += [(ops, index, op) for index, op in enumerate(ops)]
        waiting += [op["ops"] for op in ops if "ops" in op]
    return found


@needs_gpu
def test_a_missing_signal_hangs_and_is_explained(tmp_path: Path) -> None:
    def change(plan: Any) -> None:
        ops, index, _ = next(found for found in operations(plan) if found[2]["name"] == "signal")
        del ops[index]

    with pytest.raises(HangError, match=r"did not finish.*gets stuck: .*gpu"):
        run_cases_of_plans([broken(tmp_path, change)], GpuOptions(one_gpu=True, timeout_s=8))


@needs_gpu
def test_a_missing_wait_is_reported(tmp_path: Path) -> None:
    """GPU 2 gets the whole buffer over two hops; without its wait, whether it completes the call first is a race."""
    plan = json.loads(TWO_HOPS.plan().read_text())
    found = [(ops, index) for ops, index, op in operations({"gpus": plan["gpus"][2:3]}) if op["name"] == "wait"]
    assert len(found) == 1
    del found[0][0][found[0][1]]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(plan))
    arguments = ["run", str(path), "--on", "mscclpp", "--one-gpu", "--size", "256MiB", "--iterations", "2"]
    command = [sys.executable, "-m", "flowccl", *arguments, "--warmup", "0", "--timeout", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.returncode, done.stderr, done.stdout)
    assert "the interpreter finds" in done.stderr
    assert "Traceback" not in done.stderr


@needs_gpu
def test_a_wrong_offset_gives_wrong_elements(tmp_path: Path) -> None:
    def change(plan: Any) -> None:
        puts = [op for _, _, op in operations(plan) if op["name"] == "put"]
        first, second = (
            puts[0]["dst_buff"][0],
            next(op["dst_buff"][0] for op in puts[1:] if op["dst_buff"][0]["index"] != puts[0]["dst_buff"][0]["index"]),
        )
        first["index"], second["index"] = second["index"], first["index"]

    rows = run_cases_of_plans([broken(tmp_path, change)], GpuOptions(one_gpu=True, timeout_s=8))
    assert rows is not None
    assert rows[0].out_of_place is not None
    assert rows[0].out_of_place.wrong > 0


@needs_gpu
def test_what_the_gpu_cannot_run_is_refused(tmp_path: Path) -> None:
    def change(plan: Any) -> None:
        for gpu in plan["gpus"]:
            gpu["threadblocks"] *= 40

    case = broken(tmp_path, change)
    blocks = sum(read_plan(case.plan).blocks)
    with pytest.raises(InputError, match=f"8 ranks on one GPU need {blocks} threadblocks"):
        run_cases_of_plans([case], GpuOptions(one_gpu=True))
    whole = PlanCase(str(GpuCase("dgx1", "allgather", "1MiB", "out", "float32").plan()), 1 << 20, "float32")
    with pytest.raises(InputError, match="is for 8 ranks, but this host has 1 GPU; --one-gpu"):
        run_cases_of_plans([whole], GpuOptions())
