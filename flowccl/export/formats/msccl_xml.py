"""MSCCL XML in its three dialects: msccl, the NCCL executor, RCCL.

The loaders read a small subset of XML: one tag per line, double quotes, spaces only, no declaration.
"""

from collections.abc import Mapping

from flowccl.errors import InputError
from flowccl.export.lowering.drafts import GpuSteps, Step, Threadblock
from flowccl.export.lowering.plan import make_plan
from flowccl.runtimes.limits import XML_LIMITS, check_collective
from flowccl.schedule.schedule import Schedule

MSCCL_MAX_BYTES = 2**27  # msccl's default of maxBytes, by which it sizes its scratch at start


def msccl_xml(
    schedule: Schedule,
    dialect: str,
    *,
    inplace: bool = False,
    instances: int = 1,
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 0,
    sms: int | None = None,
) -> bytes:
    """Return the XML file of a schedule. `max_bytes` is the largest size that uses the file; 0 means no limit."""
    limits = XML_LIMITS[dialect]
    if max_bytes and max_bytes < min_bytes:
        raise InputError(f"--max-bytes {max_bytes} is less than --min-bytes {min_bytes}")
    plan = make_plan(schedule, limits, inplace=inplace, instances=instances, protocol=protocol, sms=sms)
    coll = check_collective(limits, schedule.demand.collective)
    most = max_bytes
    if dialect == "msccl":  # msccl excludes maxBytes itself, so 0 would match nothing
        most = max_bytes + 1 if max_bytes else max(MSCCL_MAX_BYTES, 2 * min_bytes + 1)
    head = {
        "name": f"flowccl_{plan.layout.collective}_{plan.layout.demand.num_gpus}gpus",
        "proto": protocol,
        "nchannels": plan.channels,
        "nchunksperloop": plan.layout.chunks,
        "ngpus": plan.layout.demand.num_gpus,
        "coll": coll,
        "inplace": int(inplace),
        "outofplace": int(not inplace),
        "minBytes": min_bytes,
        "maxBytes": most,
    }
    lines = [f"<algo {_attributes(head)}>"]
    for gpu in plan.gpus:
        lines += _gpu(gpu, plan.layout.counts(gpu.rank))
    return ("\n".join([*lines, "</algo>"]) + "\n").encode("ascii")


def _attributes(values: Mapping[str, object]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in values.items())


def _gpu(gpu: GpuSteps, chunks: tuple[int, int]) -> list[str]:
    counts = {"id": gpu.rank, "i_chunks": chunks[0], "o_chunks": chunks[1], "s_chunks": gpu.scratch}
    lines = [f"  <gpu {_attributes(counts)}>"]
    number = [_numbers(block) for block in gpu.blocks]
    for i, block in enumerate(gpu.blocks):
        tb = {"id": i, "send": block.send, "recv": block.recv, "chan": block.channel}
        lines.append(f"    <tb {_attributes(tb)}>")
        for index, step in zip(number[i], block.steps, strict=True):
            lines += _step(step, index, number)
        lines.append("    </tb>")
    return [*lines, "  </gpu>"]


def _numbers(block: Threadblock) -> list[int]:
    """Return the number of every step in the file: a step is preceded by one nop for each wait after the first."""
    numbers, at = [], -1
    for step in block.steps:
        at += max(1, len(step.waits))
        numbers.append(at)
    return numbers


def _step(step: Step, index: int, number: list[list[int]]) -> list[str]:
    waits = [(block, number[block][s]) for block, s in step.waits] or [(-1, -1)]
    lines = []
    for k, (block, awaited) in enumerate(waits):
        last = k == len(waits) - 1
        values: dict[str, object] = {
            "s": index - len(waits) + 1 + k,
            "type": step.kind if last else "nop",
            "srcbuf": step.src[0] if last else "i",
            "srcoff": step.src[1] if last else -1,
            "dstbuf": step.dst[0] if last else "o",
            "dstoff": step.dst[1] if last else -1,
            "cnt": step.count if last else 0,
            "depid": block,
            "deps": awaited,
            "hasdep": int(step.awaited > 0 and last),
        }
        lines.append(f"      <step {_attributes(values)}/>")
    return lines
