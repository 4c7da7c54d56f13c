"""What the GPU tests need; without it they skip and say why."""

import pytest

from flowccl.errors import FlowcclError
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.build import find_source


def _missing() -> str:
    """What is missing on this machine, in words, or nothing."""
    try:
        cuda.devices()
        find_source()
    except FlowcclError as error:
        return str(error)
    return ""


MISSING = _missing()
needs_gpu = pytest.mark.skipif(bool(MISSING), reason=MISSING)
