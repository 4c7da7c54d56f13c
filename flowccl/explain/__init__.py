"""Why a schedule ends when it ends: the critical path, slack, and what a faster link would save.

explanation = explain(schedule)
explanation.path                 the chain of transfers that ends last, each with what it waited for
explanation.gains                the time saved by links that are 10 % faster, with the same transfers in order
print(describe(explanation))     the text that `flowccl explain` prints
"""

from flowccl.explain.binding import Binding, binding_constraints
from flowccl.explain.explanation import Explanation, LinkOnPath, explain
from flowccl.explain.gains import Gain, finish_if_faster
from flowccl.explain.path import PathStep, critical_path
from flowccl.explain.words import describe

__all__ = [
    "Binding",
    "Explanation",
    "Gain",
    "LinkOnPath",
    "PathStep",
    "binding_constraints",
    "critical_path",
    "describe",
    "explain",
    "finish_if_faster",
]
