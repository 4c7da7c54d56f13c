"""What moving or copying the hottest experts would give."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.layout import HostLayout
from flowccl.moe.planner import Planner
from flowccl.moe.routing import ExpertPlacement, dispatch_blocks
from flowccl.units import format_us

_HOTTEST = 2


@dataclass(frozen=True, slots=True)
class ExpertChange:
    """A change of the placement, and the completion times of the dispatch without and with it."""

    words: str
    before_us: float
    after_us: float

    def __str__(self) -> str:
        """The change in one line."""
        gain = 1 - self.after_us / self.before_us
        return f"{self.words}: {format_us(self.after_us)}, {gain:+.1%} faster"


def expert_changes(
    planner: Planner, routing: Sequence[NDArray[np.int64]], placement: ExpertPlacement, token_bytes: int
) -> list[ExpertChange]:
    """Return what it gives to move, or to copy, the two experts with the most tokens to the GPU with the fewest."""
    layout = planner.layout

    def finish_us(other: ExpertPlacement) -> float:
        return planner.plan_blocks(dispatch_blocks(layout, routing, other, token_bytes), "dispatch").finish_us

    experts = len(placement.gpus)
    tokens = np.bincount(np.concatenate([one.reshape(-1) for one in routing]), minlength=experts)
    before, result = finish_us(placement), []
    for expert in np.argsort(-tokens, kind="stable")[:_HOTTEST].tolist():
        target = _coolest(layout, placement, tokens, expert)
        share = tokens[expert] / max(int(tokens.sum()), 1)
        name = planner.topology.nodes[target].name
        for verb, gpus in (("moving", (target,)), ("copying", (*placement.gpus[expert], target))):
            rows = list(placement.gpus)
            rows[expert] = gpus
            words = f"{verb} expert {expert} ({share:.1%} of all routes) to {name}"
            result.append(ExpertChange(words, before, finish_us(ExpertPlacement(tuple(rows)))))
    return result


def _coolest(layout: HostLayout, placement: ExpertPlacement, tokens: NDArray[np.int64], expert: int) -> int:
    """The GPU without the expert whose host, and which itself, receives the fewest tokens."""
    load = np.zeros(layout.topology.num_gpus)
    for other, gpus in enumerate(placement.gpus):
        for gpu in gpus:
            load[gpu] += tokens[other] / len(gpus)
    host = np.bincount(layout.host_of, load)[layout.host_of]
    order = np.lexsort((load, host))
    return next(int(gpu) for gpu in order if gpu not in placement.gpus[expert])
