"""Engines: where the tasks of a sweep run. All of them go through joblib."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from flowccl.errors import FlowcclError, InputError

ENGINES = ("local", "dask", "ray")
_RAY_BATCH = 64  # tasks after which finished ones are written
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class TaskEngine:
    """Where tasks run: "local" (processes of this computer), "dask" (a scheduler's address) or "ray"."""

    name: str = "local"
    address: str = ""
    jobs: int | None = None

    @classmethod
    def parse(cls, text: str, jobs: int | None = None) -> "TaskEngine":
        """Return the engine in a text such as "local", "dask=tcp://10.0.0.1:8786" or "ray"."""
        name, _, address = text.partition("=")
        if name not in ENGINES:
            raise InputError(f"unknown engine {name!r}; known engines: local, dask=ADDRESS, ray")
        if name == "dask" and not address:
            raise InputError("the engine dask needs the address of its scheduler: --engine dask=tcp://10.0.0.1:8786")
        if name == "local" and address:
            raise InputError("the engine local has no address")
        package = {"dask": "distributed", "ray": "ray"}.get(name)
        if package is not None and find_spec(package) is None:
            raise InputError(f"the engine {name} is not installed: pip install 'flowccl[{name}]'")
        return cls(name, address, jobs)

    def map(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Yield (number, outcome) of every task as it ends: what the function returns, or a `TaskFailure`."""
        from joblib import Parallel, delayed, parallel_config

        if not tasks:
            return
        calls = [delayed(_run)(function, number, task) for number, task in enumerate(tasks)]
        with ExitStack() as opened:
            jobs = min(self.jobs or (os.cpu_count() or 1), len(tasks)) if self.name == "local" else self.jobs or -1
            size = _RAY_BATCH if self.name == "ray" else len(calls)  # joblib's backend for ray returns whole lists
            kind = "list" if self.name == "ray" else "generator_unordered"
            with parallel_config(backend=self._backend(opened), n_jobs=jobs):
                run = Parallel(return_as=kind, batch_size=1)
            try:
                for first in range(0, len(calls), size):
                    yield from run(calls[first : first + size])
            except BaseException:  # Ctrl-C, or the caller wants no more: joblib alone would leave its processes behind
                self._kill_workers()
                raise

    def results(self, function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], what: str) -> list[Any]:
        """Return what the function returns for every task; raise InputError where one fails."""
        found: dict[int, Any] = {}
        for number, outcome in self.map(function, tasks):
            if isinstance(outcome, TaskFailure):
                raise InputError(f"{what}: {outcome.message}")
            found[number] = outcome
        return [found[number] for number in range(len(tasks))]

    def _kill_workers(self) -> None:
        """End the processes of the local engine, with their semaphores, which would otherwise be reported as leaked."""
        if self.name == "local":
            from joblib.externals.loky import get_reusable_executor

            get_reusable_executor().shutdown(wait=True, kill_workers=True)

    def _backend(self, opened: ExitStack) -> str:
        """The name of joblib's backend, connected where it needs a connection."""
        if self.name == "dask":
            from distributed import Client

            try:
                opened.enter_context(Client(self.address, timeout=10))
            except (OSError, TimeoutError, ValueError) as error:
                raise InputError(f"the dask scheduler at {self.address} cannot be reached: {error}") from None
        if self.name == "ray":
            from ray.util.joblib import register_ray

            register_ray()
        return "loky" if self.name == "local" else self.name


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that ended with an error, which the message names."""

    message: str


def _run(function: Callable[..., Any], number: int, task: tuple[Any, ...]) -> tuple[int, Any]:
    """Run one task with one thread per library; an error becomes an outcome, so that the other tasks go on."""
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    try:
        return number, function(*task)
    except FlowcclError as error:
        return number, TaskFailure(str(error))
    except Exception as error:  # a mistake of ours in one case must not end the sweep
        return number, TaskFailure(f"{type(error).__name__}: {error}")
