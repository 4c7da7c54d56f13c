"""Predicted against measured times of plans, 8 ranks on one GPU: fitted on half of the plans, judged on the others."""

import pytest

from flowccl.export.formats.read_mscclpp import read_mscclpp
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.cases import PlanCase
from flowccl.run.mscclpp.plan_facts import read_plan
from flowccl.run.mscclpp.run_plans import GpuOptions, run_cases_of_plans
from tests.gpu.markers import needs_gpu
from tests.gpu.plans import study
from tests.gpu.predict import H200_COSTS, predict_call_us
from tests.gpu.step_fit import PlanTime, agreement, fit_step_costs

SIZES = tuple(1 << power for power in (16, 19, 22, 25, 28))


def measured() -> list[list[PlanTime]]:
    """The median of 20 calls for every size of every plan that fits on the GPU."""
    result = []
    for path in study():
        if sum(read_plan(path).blocks) > cuda.devices()[0].resident(1024):
            continue
        rows = run_cases_of_plans([PlanCase(str(path), size, "float32") for size in SIZES], GpuOptions(one_gpu=True))
        assert rows is not None
        program = read_mscclpp(path)
        timings = [row.in_place for row in rows]
        assert [timing.wrong for timing in timings if timing is not None] == [0] * len(SIZES)
        times = [timing.median_us for timing in timings if timing is not None]
        result.append([PlanTime(program, size, time) for size, time in zip(SIZES, times, strict=True)])
        name = path.stem.removeprefix("study-")
        for time in result[-1]:
            print(f"{name} {time.size} {time.time_us:.1f} {predict_call_us(program, time.size, H200_COSTS):.1f}")
    return result


@needs_gpu
@pytest.mark.slow
def test_predictions_rank_plans_as_the_gpu_does() -> None:
    plans = measured()
    fitted = [time for plan in plans[::2] for time in plan]
    others = [time for plan in plans[1::2] for time in plan]
    costs = fit_step_costs(fitted)
    found = agreement(others, costs)
    print(costs, found, agreement(others, H200_COSTS))
    assert found.median_error <= 0.25
    assert found.rank_correlation >= 0.9
