"""Calls of a process group in flight: works that complete later, and the thread that runs calls in their order.

The calls of a group must not wait for other ranks inside the call if the program asked for `async_op`: it may go on to
do what the other ranks wait for. They run in a thread, one after the other, as they were called.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from queue import SimpleQueue
from typing import Any

from flowccl.run.torch_run import import_torch
from flowccl.run.uncompiled import uncompiled

_END_S = 10.0  # how long the end of a group waits for its last call


@lru_cache(maxsize=1)
def _plan_call_class() -> Any:
    """Return the class of the work of a call, derived from the installed torch's."""
    torch = import_torch()
    base: Any = torch.distributed.Work

    class PlanCall(base):  # type: ignore[misc]  # torch is an extra
        """The work of one call: `finish` ends it, `wait` waits for that and raises the call's error."""

        def __init__(self, result: list[Any]) -> None:
            super().__init__()
            self.tensors = result
            self.error: BaseException | None = None
            self.ended = threading.Lock()
            self.ended.acquire()
            self.guard = threading.Lock()
            self.future: Any = None

        def finish(self, error: BaseException | None = None) -> None:
            with self.guard:
                self.error, future = error, self.future
                self.ended.release()
            if future is not None:
                _complete(future, self.tensors, self.error)

        def wait(self, timeout: timedelta | None = None) -> bool:
            limit = -1.0 if timeout is None or not timeout else timeout.total_seconds()
            if not self.ended.acquire(timeout=limit):
                raise RuntimeError(f"flowccl: the call did not end within {limit:g} s")
            self.ended.release()
            if self.error is not None:
                raise self.error
            return True

        def is_completed(self) -> bool:
            return not self.ended.locked()

        def is_success(self) -> bool:
            return self.is_completed() and self.error is None

        def exception(self) -> Any:
            return self.error

        def result(self) -> list[Any]:
            return list(self.tensors)

        def synchronize(self) -> None:
            self.wait()

        def get_future(self) -> Any:
            with self.guard:
                if self.future is not None:
                    return self.future
                future = self.future = torch.futures.Future()
                ended = not self.ended.locked()
            if ended:
                _complete(future, self.tensors, self.error)
            return future

    uncompiled(vars(PlanCall).values())
    return PlanCall


def _complete(future: Any, tensors: list[Any], error: BaseException | None) -> None:
    """End a future with the tensors of a call, or with its error."""
    if error is None:
        future.set_result(tensors)
    else:
        future.set_exception(error)


def plan_call(result: list[Any]) -> Any:
    """Return the work of a call that has begun; `result` are the tensors that it writes."""
    return _plan_call_class()(result)


def done(result: list[Any]) -> Any:
    """Return the work of a call that has ended without an error."""
    work = plan_call(result)
    work.finish()
    return work


class CallThread:
    """Runs the calls of a group one after the other in a thread; `pending` calls have not ended.

    A call that the program waits for anyway needs no thread if none is pending.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...], Any] | None] = SimpleQueue()
        self.thread: threading.Thread | None = None
        self.pending = 0
        self.guard = threading.Lock()

    def submit(self, call: Callable[..., None], args: tuple[Any, ...], result: list[Any]) -> Any:
        """Run call(*args) after those that were submitted before, and return its work; the caller goes on meanwhile."""
        with self.guard:
            self.pending += 1
        if self.thread is None:
            self.thread = threading.Thread(target=self._work, name=self.name, daemon=True)
            self.thread.start()
        work = plan_call(result)
        self.waiting.put((call, args, work))
        return work

    def _work(self) -> None:
        while (item := self.waiting.get()) is not None:
            call, args, work = item
            error = _error_of(call, args)
            with self.guard:
                self.pending -= 1
            work.finish(error)

    def close(self) -> None:
        """End the thread after its last call."""
        thread, self.thread = self.thread, None
        if thread is not None:
            self.waiting.put(None)
            if thread is not threading.current_thread():
                thread.join(_END_S)


def _error_of(call: Callable[..., None], args: tuple[Any, ...]) -> BaseException | None:
    try:
        call(*args)
    except BaseException as error:
        return error
    return None
