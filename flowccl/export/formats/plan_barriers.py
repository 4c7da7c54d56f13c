"""Barriers between the threads of an MSCCL++ threadblock: a nop, wherever they need one."""

from dataclasses import dataclass, field

from flowccl.export.formats.plan_loops import END, LOOP
from flowccl.export.formats.read_packets import PACKET_STEPS
from flowccl.export.proof.program import Cell, Operation

LOCAL = frozenset({"copy", "re"})
PUTS = frozenset({"put", "pws", "pwsf"})
GROUPS = frozenset({"glres", "gstore"})
"""Operations on one GPU, puts, and operations of a switch."""
LOOPS = frozenset({LOOP, END})


@dataclass(slots=True)
class Threads:
    """What the threads of a threadblock have done since their last barrier."""

    waited: bool = False
    worked: bool = False
    touched: set[Cell] = field(default_factory=set)

    def problem(self, operation: Operation, *, is_port: bool) -> str:
        """Say why the next operation needs a barrier before it; nothing where it has one or needs none."""
        if operation.name == "nop":
            self.waited = self.worked = False
            self.touched.clear()
            return ""
        if operation.name in LOOPS:  # threads may still do what comes last in a loop
            self.waited = self.worked = True
            self.touched.clear()
            return ""
        works = operation.name in LOCAL | GROUPS | PACKET_STEPS or (operation.name in PUTS and not is_port)
        cells = {cell for cell in operation.reads() | operation.writes() if cell[1] != "p"}  # packets have flags
        problem = ""
        if operation.pops:
            problem = "a nop must come before this wait, to let all threads finish" if self.worked else ""
            self.waited = True
        elif works:
            if self.waited or self.touched & cells:
                problem = "its threads may run before the data is there; a nop must come before it"
            self.worked = True
            self.touched |= cells
        elif self.worked or (self.waited and operation.name != "signal"):
            problem = "it may announce work that other threads have not finished; a nop must come before it"
        return problem
