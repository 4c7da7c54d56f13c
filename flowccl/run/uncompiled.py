"""Functions that torch.compile must run as they are.

PyTorch's C++ code, for example DDP's, calls methods of a group. Where this happens while a compiled model runs,
torch.compile would compile these methods, too, and fail, since it knows no groups that are written in Python.
"""

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any


def uncompiled(members: Iterable[Callable[..., Any]]) -> None:
    """Make torch.compile run the functions among members, and all that they call, as they are.

    They are marked once, and calls take no longer. PyTorch older than 2.7 has no such mark.
    """
    from torch._C._dynamo import eval_frame

    if not hasattr(eval_frame, "set_code_exec_strategy"):
        return
    skip = eval_frame._FrameAction.SKIP
    for member in members:
        if isinstance(member, FunctionType):
            eval_frame.set_code_exec_strategy(member.__code__, eval_frame._FrameExecStrategy(skip, skip))
