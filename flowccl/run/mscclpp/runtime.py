"""MSCCL++'s executor in this process: through its Python package where that is installed, else through our library."""

import ctypes
import importlib.util
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from flowccl.errors import FlowcclError, InputError
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.build import find_source, library

CONNECT_S = 60  # seconds within which all ranks must have started
Share = Callable[[bytes | None], bytes]
"""Gives the bytes of rank 0 to all ranks; the others pass None."""


class Runtime(Protocol):
    """One rank of a communicator of MSCCL++."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def buffer(self, size: int) -> int:
        """Return the address of new GPU memory that other ranks can access; it lives until `reset`."""

    def reset(self) -> None:
        """Release all buffers and all that was prepared for plans; all ranks call it, with nothing in flight."""

    def close(self) -> None:
        """End the connections and threads of this rank; the other ranks must not use it any more."""

    def plan(self, path: str) -> Any:
        """Return a loaded plan."""

    def execute(self, plan: Any, buffers: tuple[int, int], sizes: tuple[int, int], dtype: str, stream: int) -> None:
        """Enqueue a plan on (input, output) with their bytes; the first call with new buffers waits for all ranks."""


def call_buffers(
    runtime: Runtime, collective: str, inplace: bool, rank: int, ranks: int, size: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the addresses and the bytes of new buffers for input and output, for a size as nccl-tests counts it."""
    block = size // ranks
    sizes = {"allgather": (block, size), "reduce_scatter": (size, block)}.get(collective, (size, size))
    if not inplace:
        return (runtime.buffer(sizes[0]), runtime.buffer(sizes[1])), sizes
    whole, own = runtime.buffer(size), rank * block
    starts = {"allgather": (own, 0), "reduce_scatter": (0, own)}.get(collective, (0, 0))
    return (whole + starts[0], whole + starts[1]), sizes


@dataclass(frozen=True, slots=True)
class Provider:
    """Where MSCCL++ comes from: its version, and the library of `build`, or None for its Python package."""

    version: str
    library: Path | None

    def open(self, rank: int, ranks: int, share: Share) -> Runtime:
        """Connect to all ranks and return this rank's end."""
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # a kernel that waits must not delay loading another
        if self.library is None:
            return _PackageRuntime(rank, ranks, share)
        return _LibraryRuntime(self.library, rank, ranks, share)


def find_provider() -> Provider:
    """Return the Python package of MSCCL++, or else the library, built if needed; raise InputError with both fixes."""
    architecture = cuda.devices()[0].architecture
    if importlib.util.find_spec("mscclpp") is not None and not os.environ.get("MSCCLPP_SOURCE"):
        import mscclpp

        return Provider(str(mscclpp.__version__), None)
    source = find_source()
    return Provider(source.version, library(source, architecture))


class _LibraryRuntime:
    """The library that flowccl has built."""

    def __init__(self, path: Path, rank: int, ranks: int, share: Share) -> None:
        self.library, self.rank = ctypes.CDLL(str(path)), rank
        for name in ("open", "buffer", "plan"):
            getattr(self.library, f"flowccl_{name}").restype = ctypes.c_void_p
        self.library.flowccl_error.restype = ctypes.c_char_p
        given = ctypes.create_string_buffer(128)
        if rank == 0:
            self._checked(self.library.flowccl_unique_id(given))
        unique = ctypes.create_string_buffer(share(given.raw if rank == 0 else None), 128)
        self.session = self._pointer(self.library.flowccl_open(rank, ranks, unique, CONNECT_S))

    def _checked(self, result: Any) -> Any:
        if not result:
            raise FlowcclError(f"MSCCL++, rank {self.rank}: {self.library.flowccl_error().decode()}")
        return result

    def _pointer(self, result: int | None) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._checked(result))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._checked(self.library.flowccl_barrier(self.session))

    def buffer(self, size: int) -> int:
        """Return the address of new GPU memory that other ranks can access."""
        return int(self._checked(self.library.flowccl_buffer(self.session, ctypes.c_size_t(size))))

    def reset(self) -> None:
        """Release all buffers and all that was prepared for plans."""
        self._checked(self.library.flowccl_reset(self.session))

    def close(self) -> None:
        """End the connections and threads of this rank."""
        self._checked(self.library.flowccl_close(self.session))

    def plan(self, path: str) -> Any:
        """Return a loaded plan."""
        return self._pointer(self.library.flowccl_plan(path.encode(), self.rank))

    def execute(self, plan: Any, buffers: tuple[int, int], sizes: tuple[int, int], dtype: str, stream: int) -> None:
        """Enqueue a plan."""
        places = [ctypes.c_void_p(address) for address in buffers]
        counts = [ctypes.c_size_t(size) for size in sizes]
        handle = ctypes.c_void_p(stream)
        self._checked(self.library.flowccl_execute(self.session, plan, *places, *counts, dtype.encode(), handle))


class _PackageRuntime:
    """MSCCL++'s own Python package."""

    def __init__(self, rank: int, ranks: int, share: Share) -> None:
        import mscclpp

        self.module, self.rank, self.buffers = mscclpp, rank, list[Any]()
        self.bootstrap: Any = mscclpp.TcpBootstrap.create(rank, ranks)
        given = pickle.dumps(self.bootstrap.create_unique_id()) if rank == 0 else None
        self.bootstrap.initialize(pickle.loads(share(given)), CONNECT_S)
        self.communicator: Any = mscclpp.Communicator(self.bootstrap)
        self.executor: Any = mscclpp.Executor(self.communicator)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.bootstrap.barrier()

    def buffer(self, size: int) -> int:
        """Return the address of new GPU memory that other ranks can access."""
        self.buffers.append(self.module.RawGpuBuffer(size))
        return int(self.buffers[-1].data())

    def reset(self) -> None:
        """Release all buffers and all that was prepared for plans."""
        self.barrier()
        self.executor = None
        self.buffers.clear()
        self.barrier()
        self.executor = self.module.Executor(self.communicator)

    def close(self) -> None:
        """End the connections and threads of this rank."""
        self.executor = self.communicator = self.bootstrap = None
        self.buffers.clear()

    def plan(self, path: str) -> Any:
        """Return a loaded plan."""
        return self.module.ExecutionPlan(path, self.rank)

    def execute(self, plan: Any, buffers: tuple[int, int], sizes: tuple[int, int], dtype: str, stream: int) -> None:
        """Enqueue a plan."""
        kind = getattr(self.module.DataType, dtype, None)
        if kind is None:
            raise InputError(f"this MSCCL++ has no type {dtype}")
        self.executor.execute(self.rank, *buffers, *sizes, kind, plan, stream)
