"""Fits the costs of steps to measured times of plans, and says how well the prediction ranks them."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.export.proof.program import RuntimeProgram
from tests.gpu.predict import H200_COSTS, StepCosts, predict_call_us

_EVALUATIONS = 12  # of the fit; each predicts all plans once for every cost


@dataclass(frozen=True, slots=True)
class PlanTime:
    """The measured time of a call of a plan with a buffer of `size` bytes."""

    program: RuntimeProgram
    size: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """How predictions agree with measurements: the median relative error, and the rank correlation (Spearman)."""

    median_error: float
    rank_correlation: float


def fit_step_costs(times: Sequence[PlanTime], start: StepCosts = H200_COSTS) -> StepCosts:
    """Return the costs with the smallest relative errors, which are weighted less where they are large."""
    from scipy.optimize import least_squares

    if len(times) < len(astuple(start)):
        raise InputError(f"a fit needs at least {len(astuple(start))} measured calls, got {len(times)}")

    def errors(logarithms: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
        costs = StepCosts(*np.exp(logarithms).tolist())
        return [float(np.log(predict_call_us(t.program, t.size, costs) / t.time_us)) for t in times]

    first = np.log(astuple(start))
    found = least_squares(
        errors, first, loss="soft_l1", f_scale=0.1, max_nfev=_EVALUATIONS, diff_step=[0.05] * len(first)
    )
    return StepCosts(*np.exp(found.x).tolist())


def agreement(times: Sequence[PlanTime], costs: StepCosts) -> Agreement:
    """Return how predictions with these costs agree with the measured times."""
    from scipy.stats import spearmanr

    measured = np.array([time.time_us for time in times])
    predicted = np.array([predict_call_us(time.program, time.size, costs) for time in times])
    return Agreement(float(np.median(np.abs(predicted / measured - 1))), float(spearmanr(measured, predicted)[0]))
