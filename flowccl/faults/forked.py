"""A function that runs in a forked process beside the program, which shares all that is loaded already."""

import multiprocessing
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Forked(Generic[Value]):
    """Runs a function in a forked process; in this one where that is not possible or fails.

    A fork copies only the thread that forks, and locks that other threads hold stay locked: programs with threads do
    not fork.
    """

    def __init__(self, function: Callable[[], Value]) -> None:
        self.function = function
        self.receiver: Connection | None = None
        if sys.platform != "linux" or threading.active_count() > 1:
            return
        context = multiprocessing.get_context("fork")
        self.receiver, sender = context.Pipe(duplex=False)
        self.process = context.Process(target=_send, args=(function, sender), daemon=True)
        self.process.start()
        sender.close()

    def result(self) -> Value:
        """Wait, and return what the function returned; call it where the process could not."""
        if self.receiver is not None:
            try:
                value: Value = self.receiver.recv()
                self.process.join()
                return value
            except EOFError:
                self.process.join()
        return self.function()


def _send(function: Callable[[], object], sender: Connection) -> None:
    try:
        sender.send(function())
    except Exception:  # closed without a value: the other process calls the function itself and has the error
        sender.close()
