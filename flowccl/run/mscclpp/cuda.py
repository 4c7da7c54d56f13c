"""The CUDA driver through ctypes: devices, memory, streams, events. Nothing is loaded before the first call."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import FlowcclError, InputError

_ATTRIBUTES = {"major": 75, "minor": 76, "multiprocessors": 16, "threads_per_multiprocessor": 39}
_REGISTERS = 64 * 1024  # registers of a multiprocessor; the executor's kernel may use 64 for each of 1024 threads
_NON_BLOCKING = 1
_RELAXED = 2  # capture mode: memory may be allocated meanwhile


class CudaError(FlowcclError):
    """A call of the CUDA driver failed."""


@cache
def _driver() -> Any:
    for name in ("libcuda.so.1", "libcuda.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise InputError("--on mscclpp needs an NVIDIA GPU, and this machine has no CUDA driver (libcuda.so.1)")


def call(name: str, *arguments: Any) -> None:
    """Call a function of the driver; raise CudaError with the driver's words if it fails."""
    code = getattr(_driver(), name)(*arguments)
    if code:
        words = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(words))
        raise CudaError(f"{name}: {(words.value or b'unknown error').decode()} (code {code})")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: its index, architecture (90 for sm_90) and the size of its processor."""

    index: int
    architecture: int
    multiprocessors: int
    threads_per_multiprocessor: int

    def resident(self, threads: int) -> int:
        """Return the threadblocks of that many threads that the GPU runs at the same time."""
        by_threads, by_registers = self.threads_per_multiprocessor // threads, _REGISTERS // (64 * threads)
        return self.multiprocessors * max(1, min(by_threads, by_registers))


@cache
def devices() -> tuple[Device, ...]:
    """Return all GPUs that this process sees; raise InputError if there is none."""
    try:
        call("cuInit", 0)
        count = ctypes.c_int()
        call("cuDeviceGetCount", ctypes.byref(count))
    except CudaError as error:
        raise InputError(f"--on mscclpp needs an NVIDIA GPU, but the CUDA driver finds none: {error}") from None
    if not count.value:
        raise InputError("--on mscclpp needs an NVIDIA GPU, and the CUDA driver finds none; see CUDA_VISIBLE_DEVICES")
    return tuple(_device(index) for index in range(count.value))


def _device(index: int) -> Device:
    found = {}
    for name, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(value), number, index)
        found[name] = value.value
    architecture = 10 * found["major"] + found["minor"]
    return Device(index, architecture, found["multiprocessors"], found["threads_per_multiprocessor"])


def use_device(index: int) -> None:
    """Make the primary context of a GPU the current one of this thread."""
    call("cuInit", 0)
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
    call("cuCtxSetCurrent", context)


def upload(address: int, values: NDArray[Any]) -> None:
    """Copy an array to the GPU, and wait until it is there: the copy of pageable memory may return before that."""
    array = np.ascontiguousarray(values)
    if array.nbytes:
        call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), array.ctypes.data_as(ctypes.c_void_p), _size(array.nbytes))
        call("cuCtxSynchronize")


def download(address: int, count: int, dtype: Any) -> NDArray[Any]:
    """Return elements in the memory of the GPU."""
    array = np.empty(count, dtype=dtype)
    if array.nbytes:
        call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(address), _size(array.nbytes))
    return array


def fill(address: int, byte: int, count: int) -> None:
    """Set bytes in the memory of the GPU."""
    if count:
        call("cuMemsetD8_v2", ctypes.c_uint64(address), ctypes.c_ubyte(byte), _size(count))
        call("cuCtxSynchronize")


def _size(count: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(count)


class StreamEvent:
    """A point in a stream, with its time."""

    def __init__(self) -> None:
        self.handle = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self.handle), 0)

    def since(self, earlier: "StreamEvent") -> float:
        """Return the microseconds since an earlier event; both must have happened."""
        result = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(result), earlier.handle, self.handle)
        return result.value * 1e3


class Stream:
    """A stream of its own, or that of another library by its handle."""

    def __init__(self, handle: int | None = None) -> None:
        self.handle = ctypes.c_void_p(handle)
        if handle is None:
            call("cuStreamCreate", ctypes.byref(self.handle), _NON_BLOCKING)

    def record(self, event: StreamEvent) -> None:
        """Let the event happen after all work so far."""
        call("cuEventRecord", event.handle, self.handle)

    def synchronize(self) -> None:
        """Wait until all work so far is complete."""
        call("cuStreamSynchronize", self.handle)

    def without_running(self, launch: Callable[[], None]) -> None:
        """Call `launch` while the stream is captured, and discard the captured work: nothing of it runs.

        The first call of a plan prepares memory and connections with all other ranks, and then starts a kernel that
        waits for their data. Where ranks share a GPU, such a kernel must not run before all ranks are prepared: they
        would wait for the GPU, and it for them. A captured call prepares everything and starts no kernel.
        """
        call("cuStreamBeginCapture_v2", self.handle, _RELAXED)
        graph = ctypes.c_void_p()
        try:
            launch()
        finally:
            call("cuStreamEndCapture", self.handle, ctypes.byref(graph))
            call("cuGraphDestroy", graph)
