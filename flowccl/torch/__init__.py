"""Schedules inside PyTorch: in a job without changing it, as a backend, and as functions on tensors.

    FLOWCCL_CATALOG=plans torchrun train.py                             # docs/torch.md

>>> import flowccl.torch
>>> print(flowccl.torch.report())                                       # which calls ran by plans
>>> flowccl.torch.all_reduce(tensor, schedule)                          # one call, over the default group
>>> flowccl.torch.init_process_group(["allreduce.json"])                # a whole program, with schedules of your own

On the CPU, every message is a send and a receive of gloo, so real data moves as in the schedule; this is not fast. On
CUDA GPUs, schedules run as plans of MSCCL++, on streams. torch is an extra: pip install flowccl[torch].

`import torch` imports this package where it is installed, so its modules are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowccl.torch.backend import (
        alarms,
        counts,
        init_process_group,
        register_backend,
        save_selection,
    )
    from flowccl.torch.functions import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
    from flowccl.torch.reporting import report
    from flowccl.torch.resharding import layout, reshard

_MODULES = {
    "backend": "alarms counts init_process_group register_backend save_selection",
    "functions": "all_gather all_reduce all_to_all broadcast reduce_scatter",
    "reporting": "report",
    "resharding": "layout reshard",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "alarms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "counts",
    "init_process_group",
    "layout",
    "reduce_scatter",
    "register_backend",
    "report",
    "reshard",
    "save_selection",
]


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
