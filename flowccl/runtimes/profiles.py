"""Runtime profiles: the limits of a runtime and what a message costs on it; every cost with its source."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from flowccl.errors import FileError, InputError
from flowccl.files import read_json
from flowccl.runtimes.costs import FREE, LocalCost, MessageCost, MessageCosts
from flowccl.runtimes.limits import LIMITS, RuntimeLimits
from flowccl.topology.fields import check_keys, flag_field, quantity_field, show, text_field
from flowccl.topology.machines import nearest
from flowccl.units import parse_us

FORMAT = "flowccl-runtime"
VERSION = 1
ALIGNMENT_BYTES = 16
"""Runtimes move data in vectors of 16 bytes, so chunks are multiples of it."""
WARP_BYTES = 32 * ALIGNMENT_BYTES  # one access by each thread of a warp
_HALVINGS, _PADDED = 7, 1 / 128  # a size that no plan serves is raised to one of blocks that can be halved


@dataclass(frozen=True, slots=True)
class RuntimeProfile:
    """A runtime: its limits (None: no limits), what a message costs, and whether it has in-network operations (NVLS).

    `source` says where the costs come from. `proxy_us` are overheads of messages over a NIC that depend on the model of
    the GPU, as (model, microseconds); all other models have that of `costs`.
    """

    name: str
    limits: RuntimeLimits | None
    costs: MessageCosts
    nvls: bool = False
    source: str = ""
    proxy_us: tuple[tuple[str, float], ...] = ()

    @property
    def is_ideal(self) -> bool:
        """Whether this is the model of the papers: no limits, free messages, all in-network operations."""
        return self.limits is None


def served_bytes(size_bytes: int, gpus: int, chunks: int = 1) -> int:
    """Return a size itself if plans of `chunks` chunks per block serve it, else the next one that they serve well.

    Chunks must be multiples of 16 bytes. Where a size is raised at all, it is raised to one whose blocks can be divided
    further, as often as that costs less than a hundredth: 1,000,000 bytes on 16 GPUs would become blocks of 3,907 units
    of 16 bytes, a prime number, which no plan can cut into chunks.
    """
    unit = ALIGNMENT_BYTES * gpus * chunks
    if size_bytes % unit == 0:
        return size_bytes
    raised = [-(-size_bytes // (unit << k)) * (unit << k) for k in range(_HALVINGS, -1, -1)]
    return next((size for size in raised if size - size_bytes <= _PADDED * size_bytes), raised[-1])


_SIMPLE_HOP_US = 3.4  # NCCL's tuning table: a hop on NVLink with protocol Simple
_NIC_POST_US = 3.0  # NCCL getNetOverhead: 1 us to post a message on Intel hosts, three times that for Simple
_NIC_POST_AMD_US = 6.0  # the same on AMD hosts: 2 us
_XML_COSTS = MessageCosts(
    MessageCost(_SIMPLE_HOP_US), MessageCost(_SIMPLE_HOP_US), MessageCost(_NIC_POST_US, proxy=True)
)

_THREADBLOCK = (  # docs/gpu.md: rates of a threadblock of 1,024 threads on an H200 with 16 at work
    LocalCost("put", 0.0, 34.1),
    LocalCost("copy", 0.0, 34.2),
    LocalCost("reduce", 0.0, 24.8),
    LocalCost("put packets", 0.0, 19.3),
    LocalCost("read packets", 0.0, 20.1),
)

PROFILES = {
    profile.name: profile
    for profile in (
        RuntimeProfile("ideal", None, FREE, nvls=True, source="the model of the papers: messages are free"),
        RuntimeProfile(
            "mscclpp",
            LIMITS["mscclpp"],
            MessageCosts(
                # 0.6 us: NCCL's tuning table, a hop of stores and a flag (LL). Signal and wait take 1.2 us one way on
                # H100 (MSCCL++ commit 4f3638b6), of which 0.7 us are the latency of the two links through an NVSwitch.
                nvlink=MessageCost(0.6, 0.5),
                pcie=MessageCost(0.6, 0.5),
                # 2.0 us: request from GPU to CPU proxy on H200 (MSCCL++ issue 864). 0.35 us: a further RDMA write on
                # ConnectX-7 (NCCL issue 2409), which carries the signal.
                nic=MessageCost(2.0, 0.35, proxy=True),
                local=_THREADBLOCK,
            ),
            nvls=True,
            source="NCCL's tuning table; MSCCL++ commit 4f3638b6 and issue 864; NCCL issue 2409",
            proxy_us=(("A100", 3.6), ("MI300X", 1.1)),  # MSCCL++ issue 864
        ),
        RuntimeProfile("msccl", LIMITS["msccl"], _XML_COSTS, source="NCCL's tuning table and getNetOverhead"),
        RuntimeProfile("executor", LIMITS["executor"], _XML_COSTS, source="NCCL's tuning table and getNetOverhead"),
        RuntimeProfile(
            "rccl",
            LIMITS["rccl"],
            replace(_XML_COSTS, nic=MessageCost(_NIC_POST_AMD_US, proxy=True)),
            source="NCCL's tuning table and getNetOverhead, on AMD hosts",
        ),
    )
}
"""The profiles by name."""


def runtime_profile(text: str) -> RuntimeProfile:
    """Return the profile with a name such as "mscclpp", or the one that a JSON file describes."""
    if text in PROFILES:
        return PROFILES[text]
    if text.endswith(".json") or Path(text).is_file():
        return load_profile(text)
    raise InputError(f"unknown runtime {text!r}{nearest(text, PROFILES)}; known runtimes: {', '.join(PROFILES)}")


def load_profile(path: str | Path) -> RuntimeProfile:
    """Return a profile from a JSON file: a known runtime with other costs."""
    try:
        return profile_from_json(read_json(path, 1_000_000))
    except FileError:
        raise
    except InputError as error:
        raise FileError(f"{path}: {error}") from None


def profile_to_json(profile: RuntimeProfile) -> dict[str, Any]:
    """Return a profile as a JSON value."""
    costs = {
        kind: {"overhead_us": cost.overhead_us, "signal_us": cost.signal_us, "proxy": cost.proxy}
        for kind, cost in (("nvlink", profile.costs.nvlink), ("pcie", profile.costs.pcie), ("nic", profile.costs.nic))
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "runtime": profile.name,
        "costs": costs,
        "source": profile.source,
        **({"local": [asdict(cost) for cost in profile.costs.local]} if profile.costs.local else {}),
    }


def profile_from_json(value: Any) -> RuntimeProfile:
    """Return the profile in a JSON value; limits are those of the runtime that it names."""
    if isinstance(value, dict) and value.get("format", FORMAT) != FORMAT:
        raise InputError(f"is not a profile of a runtime: format must be {FORMAT!r}, got {show(value['format'])}")
    example = {"format": f'"{FORMAT}"', "version": str(VERSION), "runtime": '"mscclpp"', "costs": "{}"}
    check_keys(value, "", (*example, "source", "local"), example)
    if value["format"] != FORMAT or value["version"] != VERSION:
        raise InputError(f'write "format": "{FORMAT}", "version": {VERSION} at the top')
    name = text_field(value["runtime"], "", "runtime")
    if name not in PROFILES:
        raise InputError(f"runtime: unknown {name!r}; known runtimes: {', '.join(PROFILES)}")
    kinds = ("nvlink", "pcie", "nic")
    check_keys(value["costs"], "costs", kinds, dict.fromkeys(kinds, '{"overhead_us": 0.6}'))
    nvlink, pcie, nic = (_read_cost(value["costs"][kind], f"costs.{kind}", name, kind) for kind in kinds)
    costs = MessageCosts(nvlink, pcie, nic, _read_local(value.get("local", [])))
    known = PROFILES[name]
    proxy_us = known.proxy_us if costs.nic == known.costs.nic else ()  # the file's own cost is for every GPU
    return replace(known, costs=costs, source=text_field(value.get("source", ""), "", "source"), proxy_us=proxy_us)


def _read_local(rows: Any) -> tuple[LocalCost, ...]:
    """Return the cost of each operation for the most threads and the fewest threadblocks that were measured."""
    if not isinstance(rows, list):
        raise InputError(f"local must be a list, got {show(rows)}")
    found: dict[str, tuple[tuple[int, int], LocalCost]] = {}
    for number, row in enumerate(rows):
        place = f"local[{number}]"
        known = ("operation", "threadblocks", "threads", "overhead_us", "GBps")
        check_keys(row, place, known, {"operation": '"copy"', "overhead_us": "0.4"})
        for key in known[1:]:
            if type(row.get(key, 0)) not in (int, float) or not 0 <= row.get(key, 0) < 1e6:
                raise InputError(f"{place}: {key} must be a number of at least 0 and below 1e6, got {show(row[key])}")
        operation = text_field(row["operation"], place, "operation")
        cost = LocalCost(operation, float(row["overhead_us"]), float(row.get("GBps", 0)))
        rank = (-row.get("threads", 0), row.get("threadblocks", 0))
        if operation not in found or rank < found[operation][0]:
            found[operation] = rank, cost
    return tuple(cost for _, cost in found.values())


def _read_cost(value: Any, place: str, runtime: str, kind: str) -> MessageCost:
    check_keys(value, place, ("overhead_us", "signal_us", "proxy"), {"overhead_us": "0.6"})
    for key in ("overhead_us", "signal_us"):
        number = value.get(key, 0)
        if type(number) in (int, float) and number < 0:
            raise InputError(f"{place}: {key} must be at least 0, got {show(number)}")
    overhead, signal = (
        quantity_field(parse_us, value.get(key, 0.0), place, key) for key in ("overhead_us", "signal_us")
    )
    usual = PROFILES[runtime].costs.of(kind).proxy  # type: ignore[arg-type]
    return MessageCost(overhead, signal, flag_field(value["proxy"], place, "proxy") if "proxy" in value else usual)
