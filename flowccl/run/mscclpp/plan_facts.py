"""What a run needs to know about an MSCCL++ plan: its collective, sizes, threadblocks and operations."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowccl.demand.collectives import collective
from flowccl.errors import FileError, InputError
from flowccl.export.formats.read_mscclpp import MAX_PLAN_BYTES
from flowccl.files import parse_json, read_bytes
from flowccl.run.element_layout import ElementLayout, make_layout
from flowccl.run.mscclpp.cuda import Device
from flowccl.run.values import Dtype, find_dtype
from flowccl.runtimes.limits import MSCCLPP_LIMITS

TYPES = ("float32", "float16", "bfloat16", "int32")
"""Element types that MSCCL++'s executor reduces."""

OLDEST, NEWEST = (0, 8), (0, 9)  # versions of MSCCL++ with the format of plans that flowccl writes
_SINCE_0_9 = {"recpkt", "recspkt", "gstore", "gstorepkt"}  # operations that MSCCL++ 0.8 does not have


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan file and its facts. `chunks` are the (input, output) chunks of each rank, `blocks` its threadblocks."""

    path: str
    name: str
    collective: str
    protocol: str
    inplace: bool
    chunks: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]
    threads: int
    alignment: int
    min_bytes: int
    max_bytes: int
    operations: frozenset[str]
    root: int = 0

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.chunks)

    def layout(self, size: int, dtype: Dtype) -> ElementLayout:
        """Return the layout of the buffers for a size as nccl-tests counts it; raise InputError if it does not fit."""
        step = self.step(dtype)
        if size % step or not size:
            raise InputError(
                f"{self.path} does not serve {size} bytes: its chunks need a multiple of {step} bytes; "
                f"the nearest size is {max(round(size / step), 1) * step}"
            )
        if not self.min_bytes <= size <= self.max_bytes:
            raise InputError(f"{self.path} serves {self.min_bytes} to {self.max_bytes} bytes, not {size}")
        extra = (self.root,) if self.collective == "broadcast" else ()
        demand = collective(self.collective, self.ranks, self.ranks, 1, *extra)
        return make_layout(demand, size // dtype.itemsize)

    def step(self, dtype: Dtype) -> int:
        """Return the bytes of which every size must be a multiple: whole aligned chunks on every rank."""
        parts = max(max(pair) for pair in self.chunks)
        unit = max(self.alignment, dtype.itemsize)
        return unit * (parts if parts % self.ranks == 0 or self.collective == "broadcast" else parts * self.ranks)

    def check_resident(self, device: Device, ranks_per_gpu: int) -> None:
        """Raise InputError if the threadblocks of all ranks on a GPU cannot run at the same time."""
        most = device.resident(self.threads)
        need = sum(sorted(self.blocks, reverse=True)[:ranks_per_gpu])
        if need > most:
            where = f"{ranks_per_gpu} ranks on one GPU need" if ranks_per_gpu > 1 else "a rank needs"
            raise InputError(
                f"{self.path}: {where} {need} threadblocks of {self.threads} threads at once, but the GPU runs {most}; "
                "synthesize with fewer chunks, or export with fewer instances"
            )

    def check_version(self, version: str) -> None:
        """Raise InputError if this version of MSCCL++ cannot run the plan."""
        found = tuple(int(part) for part in version.split(".")[:2])
        newer = sorted(self.operations & _SINCE_0_9)
        if found < OLDEST:
            raise InputError(f"MSCCL++ {version} is too old for these plans: it must be 0.8 or 0.9")
        if found > NEWEST:
            raise InputError(f"MSCCL++ {version} is newer than the versions that flowccl knows: it must be 0.8 or 0.9")
        if newer and found < (0, 9):
            raise InputError(f"{self.path}: the operation {newer[0]} needs MSCCL++ 0.9, but this is {version}")


def is_plan(path: str | Path) -> bool:
    """Whether a JSON file looks like an MSCCL++ plan rather than like a schedule."""
    if str(path).endswith(".gz"):
        return False
    value = parse_json(read_bytes(Path(path), MAX_PLAN_BYTES), str(path))
    return isinstance(value, dict) and "gpus" in value and "format" not in value


def read_plan(path: str | Path, root: int = 0) -> PlanFacts:
    """Return the facts of a plan file; raise FileError if it is not a plan of MSCCL++ 0.8 or later."""
    value = parse_json(read_bytes(Path(path), MAX_PLAN_BYTES), str(path))
    try:
        return _facts(value, str(path), root)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        hint = "; plans of MSCCL++ 0.7 and older have another format" if _is_old(value) else ""
        raise FileError(f"{path}: not an MSCCL++ plan: {type(error).__name__}: {error}{hint}") from None


def _is_old(value: Any) -> bool:
    return "inputChunks" in json.dumps(value)


def _facts(value: dict[str, Any], path: str, root: int) -> PlanFacts:
    ours = {theirs: name for name, theirs in MSCCLPP_LIMITS.collectives.items()}
    if value["collective"] not in ours:
        raise FileError(f"{path}: flowccl knows no collective {value['collective']!r}; it runs {', '.join(ours)}")
    gpus: Sequence[dict[str, Any]] = value["gpus"]
    names = Counter(op["name"] for gpu in gpus for block in gpu["threadblocks"] for op in block["ops"])
    chunks = tuple((int(gpu["input_chunks"]), int(gpu["output_chunks"])) for gpu in gpus)
    if not gpus or any(min(pair) < 1 for pair in chunks):
        raise FileError(f"{path}: every GPU must have at least one input and one output chunk")
    return PlanFacts(
        path=path,
        name=str(value["name"]),
        collective=ours[value["collective"]],
        protocol=str(value["protocol"]),
        inplace=bool(value["inplace"]),
        chunks=chunks,
        blocks=tuple(len(gpu["threadblocks"]) for gpu in gpus),
        threads=int(value.get("num_threads_per_block", 1024)),
        alignment=int(value.get("buffer_alignment", 16)),
        min_bytes=int(value.get("min_message_size", 0)),
        max_bytes=int(value.get("max_message_size", 2**64 - 1)),
        operations=frozenset(names),
        root=root,
    )


def plan_dtype(name: str) -> Dtype:
    """Return a dtype; raise InputError if MSCCL++ does not reduce it."""
    dtype = find_dtype(name)
    if dtype.name not in TYPES:
        raise InputError(f"MSCCL++'s executor has no {dtype.name}; its types are {', '.join(TYPES)}")
    return dtype
