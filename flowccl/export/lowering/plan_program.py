"""A plan as a program, as its target would run it: what a reader makes of the file, without the file."""

from flowccl.export.formats.mscclpp_operations import waits_of
from flowccl.export.limits import FIFO, Limits
from flowccl.export.lowering.buffers import Cell
from flowccl.export.lowering.plan import Plan
from flowccl.export.lowering.threadblocks import Block, Step
from flowccl.export.proof.program import Cell as Place
from flowccl.export.proof.program import Operation, Program, Source

_RECEIVES = ("r", "rcs", "rrc", "rrcs")
_SENDS = ("s", "rcs", "rrcs")
_ADDS = ("rrc", "rrcs", "re")
_SIGNALS, _AWAITS = ("here", "free"), ("meet", "freed")  # from the receiver to the sender


def program_of(plan: Plan, limits: Limits) -> Program:
    """The steps of all threadblocks. A one-sided sender writes into the receiver's memory; others go through a FIFO."""
    layout = plan.layout
    counts = [(gpu.input, gpu.output, gpu.scratch) for gpu in plan.gpus]
    if limits.one_sided:
        counts = [(*layout.whole_counts, gpu.scratch) for gpu in plan.gpus]
    program = Program(
        layout.collective,
        len(plan.gpus),
        (layout.inplace,),
        plan.chunks,
        counts,
        [],
        None if limits.one_sided else FIFO[plan.protocol],
        layout.root,
    )
    for gpu in plan.gpus:
        for number, block in enumerate(gpu.blocks):
            for index, step in enumerate(block.steps):
                operation = Operation(gpu.rank, number, index, step.kind, is_published=step.awaited > 0)
                _connect(operation, block, step)
                (_write_far if limits.one_sided else _through_fifo)(operation, step)
                program.operations.append(operation)
    return program


def _connect(operation: Operation, block: Block, step: Step) -> None:
    if step.kind in _SENDS:
        operation.pushes.append((operation.rank, block.send, block.channel))
        operation.sends_to, operation.size = block.send, step.count
    if step.kind in _RECEIVES:
        operation.pops.append((block.recv, operation.rank, block.channel))
        operation.size = step.count
    if step.kind in _SIGNALS:
        operation.pushes.append(("back", operation.rank, block.recv, block.channel))
    if step.kind in _AWAITS:
        operation.pops.append(("back", block.send, operation.rank, block.channel))


def _through_fifo(operation: Operation, step: Step) -> None:
    operation.after = list(step.waits)
    for k in range(step.count):
        src, dst = _at(operation.rank, step.src, k), _at(operation.rank, step.dst, k)
        sources: tuple[Source, ...] = (k,) if step.kind in _RECEIVES else (src,)
        if step.kind in _ADDS:
            sources = (*sources, dst if step.kind == "re" else src)
        if step.kind != "s":
            operation.assigns.append((dst, sources))
        if step.kind in _SENDS:
            operation.assigns.append((k, sources))


def _write_far(operation: Operation, step: Step) -> None:
    operation.after = list(waits_of(step))
    if step.kind in ("r", *_SIGNALS, *_AWAITS):
        return
    rank = operation.sends_to if step.kind == "s" else operation.rank
    for k in range(step.count):
        src, dst = _at(operation.rank, step.src, k), _at(rank, step.dst, k)
        operation.assigns.append((dst, (src, dst) if step.kind in _ADDS else (src,)))


def _at(rank: int, cell: Cell, k: int) -> Place:
    return rank, cell[0], cell[1] + k
