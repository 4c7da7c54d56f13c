"""Predicted times of plans on one GPU: cases with known answers."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowccl.export.formats.read_mscclpp import read_mscclpp
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.profile.step_plans import StepProbe
from tests.gpu.predict import H200_COSTS, StepCosts, predict_call_us
from tests.gpu.step_fit import PlanTime, agreement, fit_step_costs

COSTS = StepCosts(start_us=10, move_us=1, token_us=2, barrier_us=0.5, block_GBps=50, gpu_GBps=200)


def copies(blocks: int) -> RuntimeProgram:
    """Each of some threadblocks copies one chunk of its own."""
    steps = [Operation(0, block, 0, "copy", assigns=[((0, "o", block), ((0, "i", block),))]) for block in range(blocks)]
    return RuntimeProgram("allgather", 1, (False,), blocks, [(blocks, blocks, 0)], steps, None)


@pytest.mark.parametrize(("blocks", "rate"), [(1, 50), (4, 50), (8, 25)])
def test_threadblocks_share_the_memory(blocks: int, rate: float) -> None:
    moved = 2 * 1_000_000  # one chunk, read and written
    assert predict_call_us(copies(blocks), 1_000_000 * blocks, COSTS) == pytest.approx(10 + 1 + moved / rate / 1e3)


def test_a_wait_comes_after_its_signal(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(StepProbe("signal", 1, 1024, 3).plan()))
    exchange = 2 + 2 + 0.5  # signal, wait, nop
    assert predict_call_us(read_mscclpp(path), 4096, COSTS) == pytest.approx(10 + 5 * exchange)


@given(st.integers(4, 28))
def test_larger_buffers_take_longer(power: int) -> None:
    assert predict_call_us(copies(3), 3 << power, COSTS) < predict_call_us(copies(3), 3 << (power + 1), COSTS)


def test_costs_are_found_again_from_the_times_of_plans(tmp_path: Path) -> None:
    true = StepCosts(20, 1.5, 1.0, 0.3, 40, 1000)
    times = []
    for operation in ("barrier", "signal", "put", "reduce"):
        for blocks in (1, 16):
            path = tmp_path / f"{operation}-{blocks}.json"
            path.write_text(json.dumps(StepProbe(operation, blocks, 1024, 5).plan()))
            program = read_mscclpp(path)
            sizes = (1 << 14, 1 << 20, 1 << 24)
            times += [PlanTime(program, size, predict_call_us(program, size, true)) for size in sizes]
    before = agreement(times, H200_COSTS)
    found = fit_step_costs(times)
    after = agreement(times, found)
    assert after.median_error < min(0.02, before.median_error)
    assert after.rank_correlation > 0.99
    assert found.block_GBps == pytest.approx(40, rel=0.1)
