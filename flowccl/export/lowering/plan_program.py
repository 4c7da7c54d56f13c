"""Conversion of an execution plan to the program that its target would run, without writing and reading a file."""

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.plan import ExecutionPlan
from flowccl.export.lowering.threadblocks import Step, Threadblock
from flowccl.export.proof.program import Cell, Operand, Operation, RuntimeProgram
from flowccl.runtimes.limits import FIFO, RuntimeLimits

_RECEIVES = ("r", "rcs", "rrc", "rrcs")
_SENDS = ("s", "rcs", "rrcs")
_ADDS = ("rrc", "rrcs", "re")
_SWITCH = ("gstore", "glres")
_SIGNALS, _AWAITS = ("ready", "release"), ("await-ready", "await-release")  # from receiver to sender


def program_of(plan: ExecutionPlan, limits: RuntimeLimits) -> RuntimeProgram:
    """Return the program of a plan. One-sided senders write into the receiver's memory; others send through a FIFO."""
    layout = plan.layout
    counts = [(gpu.input, gpu.output, gpu.scratch) for gpu in plan.gpus]
    if limits.one_sided:
        counts = [(*layout.whole_counts, gpu.scratch) for gpu in plan.gpus]
    program = RuntimeProgram(
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
                (_write_remote if limits.one_sided else _through_fifo)(operation, step)
                program.operations.append(operation)
    return program


def _connect(operation: Operation, block: Threadblock, step: Step) -> None:
    if step.kind in _SENDS:
        peer, channel = block.targets[step.target]
        operation.pushes.append((operation.rank, peer, channel))
        operation.sends_to, operation.size = peer, step.count
    if step.kind in _RECEIVES:
        operation.pops.append((block.recv, operation.rank, block.channel))
        operation.size = step.count
    if step.kind in _SIGNALS:
        operation.pushes.append(("back", operation.rank, block.recv, block.channel))
    if step.kind in _SWITCH:
        operation.pushes += [(operation.rank, member, block.channel) for member in block.members]
        operation.group, operation.size = tuple(sorted((operation.rank, *block.members))), step.count
    if step.kind in _AWAITS and block.members:
        operation.pops += [("back", member, operation.rank, block.channel) for member in block.members]
    elif step.kind in _AWAITS:
        peer, channel = block.targets[step.target]
        operation.pops.append(("back", peer, operation.rank, channel))


def _through_fifo(operation: Operation, step: Step) -> None:
    operation.after = list(step.waits)
    for k in range(step.count):
        src, dst = _at(operation.rank, step.src, k), _at(operation.rank, step.dst, k)
        sources: tuple[Operand, ...] = (k,) if step.kind in _RECEIVES else (src,)
        if step.kind in _ADDS:
            sources = (*sources, dst if step.kind == "re" else src)
        if step.kind != "s":
            operation.assigns.append((dst, sources))
        if step.kind in _SENDS:
            operation.assigns.append((k, sources))


def _write_remote(operation: Operation, step: Step) -> None:
    operation.after = list(step.waits)
    if step.kind in ("r", *_SIGNALS, *_AWAITS):
        return
    if step.kind in _SWITCH:
        loads = operation.group if step.kind == "glres" else (operation.rank,)
        for k in range(step.count):
            sources = tuple(_at(rank, step.src, k) for rank in loads)
            operation.assigns += [(_at(rank, step.dst, k), sources) for rank in operation.group]
        return
    rank = operation.sends_to if step.kind == "s" else operation.rank
    for k in range(step.count):
        src, dst = _at(operation.rank, step.src, k), _at(rank, step.dst, k)
        operation.assigns.append((dst, (src, dst) if step.kind in _ADDS else (src,)))


def _at(rank: int, slot: BufferSlot, k: int) -> Cell:
    return rank, slot[0], slot[1] + k
