"""Loading methods: those whose loops are compiled start at once, the others join when theirs are compiled."""

import time
from collections.abc import Callable

from flowccl.compilation import (
    PROGRAMS,
    compile_in_background,
    compile_programs,
    in_background,
    is_ready,
    units_of,
    wait_for_programs,
    warm_up,
)
from flowccl.methods.registry import load_method
from flowccl.search.budget import Budget
from flowccl.search.context import Method

_POLL_S = 0.3  # how often the cache is looked at


class MethodLoader:
    """Loads methods, and compiles the loops of those that were never compiled on this computer.

    Where the run must be `repeatable`, everything is compiled first, before the time limit starts. Else the methods
    that are ready start at once; if none is, the one that takes least to compile is compiled and starts. The loops of
    all others are compiled by a process in the background, and `more` returns their methods when that is done. With
    `programs`, so are the loops that prove and time programs.
    """

    def __init__(self, names: list[str], *, repeatable: bool, programs: bool = False) -> None:
        ready = [name for name in names if is_ready(name)]
        self.all_first = repeatable or not in_background()
        if self.all_first:
            ready = names
        elif not ready:
            fewest = min(len(units_of([name])) for name in names)
            ready = [name for name in names if len(units_of([name])) == fewest]
        self.ready, self.waiting = ready, [name for name in names if name not in ready]
        self.programs = programs
        self.notes: dict[str, object] = {}
        self.polled_s = 0.0

    def first(self, on_phase: Callable[[str], None]) -> dict[str, Method]:
        """The methods to start with; `on_phase` is told what is compiled."""
        missing = units_of(name for name in self.ready if not is_ready(name))
        began = time.monotonic()
        on_phase(f"compiling, once: {', '.join(missing)}" if missing else "loading")
        warm_up(self.ready)
        if missing:
            self.notes["compile_s"] = round(time.monotonic() - began, 1)
        if self.all_first and self.programs:
            compile_programs()
        if others := [*([PROGRAMS] if self.programs and not self.all_first else []), *units_of(self.waiting)]:
            units = compile_in_background(others)
            if self.waiting:
                self.notes["compiling_in_background"] = units
        on_phase("searching")
        return {name: load_method(name) for name in self.ready}

    def wait_for_programs(self, on_phase: Callable[[str], None]) -> None:
        """Wait for the loops of programs, where a process in the background compiles them."""
        if self.programs and not self.all_first:
            wait_for_programs(on_phase)

    def wait(self, budget: Budget) -> dict[str, Method]:
        """The next methods whose loops become compiled; none where no more will, or when the time is over."""
        joining: dict[str, Method] = {}
        while self.waiting and not joining and budget.left_s > 0 and not budget.should_stop():
            time.sleep(_POLL_S)
            joining = self.more()
        return joining

    def more(self) -> dict[str, Method]:
        """The methods whose loops were compiled since the last call."""
        now_s = time.monotonic()
        if not self.waiting or now_s - self.polled_s < _POLL_S:
            return {}
        self.polled_s = now_s
        joining = [name for name in self.waiting if is_ready(name)]
        self.waiting = [name for name in self.waiting if name not in joining]
        warm_up(joining)
        return {name: load_method(name) for name in joining}
