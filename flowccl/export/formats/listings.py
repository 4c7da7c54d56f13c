"""Files that list sends without buffers: msccl-tools' JSON and TE-CCL's result. They are proved by following the data.

msccl-json   All sends of a step start together and carry the data that earlier steps delivered. Arriving data is
             reduced with the present data if the two share no contribution, and replaces it if it includes all of its
             contributions; anything else is wrong. At the end, every rank has all contributions to its outputs.
teccl        Flows are followed in the order of the file (papers/teccl/result_file.py).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowccl import by_name
from flowccl.errors import InputError
from flowccl.export.formats.recognition import explain_mismatch
from flowccl.export.proof.program import Finding
from flowccl.files import read_json

_MOST_BYTES = 256_000_000


@dataclass(frozen=True, slots=True)
class Listing:
    """Summary of a file: what it is about, and the number of its sends."""

    about: str
    sends: int


def check_listing(path: str | Path, target: str) -> tuple[Listing, list[Finding]]:
    """Read a file and prove it: return its summary and everything that is wrong with it."""
    try:
        return _prove(read_json(path, _MOST_BYTES), target, str(path))
    except InputError as error:
        raise InputError(explain_mismatch(path, target) or str(error)) from None


def prove_listing(content: bytes, target: str) -> list[Finding]:
    """Return everything that is wrong with contents that are not written yet."""
    return _prove(json.loads(content), target, f"the file for {target}")[1]


def _prove(value: Any, target: str, name: str) -> tuple[Listing, list[Finding]]:
    try:
        listing, findings = LISTINGS[target](value)
        return listing, list(findings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{name} is not a valid {target} file: {error!r}") from None


def _msccl_json(value: dict[str, Any]) -> tuple[Listing, Iterator[Finding]]:
    chunks, steps = value["collective"]["chunks"], value["steps"]
    sends = sum(len(step["sends"]) for step in steps)
    about = f"{value['collective']['runtime_name']} of {len(chunks)} chunks on {int(value['collective']['nodes'])} gpus"
    return Listing(about, sends), _followed(chunks, [step["sends"] for step in steps])


def _followed(chunks: list[dict[str, Any]], steps: list[list[list[int]]]) -> Iterator[Finding]:
    has: dict[tuple[int, int], frozenset[int]] = {}  # (rank, address): contributions reduced there
    whole: dict[int, set[int]] = {}  # address: all its contributions
    for i, chunk in enumerate(chunks):
        whole.setdefault(chunk["addr"], set()).add(i)
        for rank in chunk["pre"]:
            has[rank, chunk["addr"]] = has.get((rank, chunk["addr"]), frozenset()) | {i}
    for number, sends in enumerate(steps):
        before = dict(has)
        for address, src, dst in sends:
            place = f"step {number}: address {address} from rank {src} to rank {dst}"
            comes, there = before.get((src, address)), has.get((dst, address), frozenset())
            if comes is None:
                yield Finding("order", f"{place}: the sender does not have the data yet")
            elif comes & there and not comes >= there:
                yield Finding("result", f"{place}: counts a contribution twice")
            else:
                has[dst, address] = comes | there
    for address, all_of_it in whole.items():
        wanted = {rank for chunk in chunks if chunk["addr"] == address for rank in chunk["post"]}
        for rank in sorted(wanted):
            missing = all_of_it - has.get((rank, address), frozenset())
            if missing:
                yield Finding("result", f"rank {rank} lacks {len(missing)} contributions of address {address}")


def _teccl(value: dict[str, Any]) -> tuple[Listing, Iterator[Finding]]:
    about, sends, found = by_name.load("flowccl.papers.teccl.result_file:followed")(value)
    return Listing(about, sends), (Finding(kind, message) for kind, message in found)


LISTINGS: dict[str, Callable[[dict[str, Any]], tuple[Listing, Iterator[Finding]]]] = {
    "msccl-json": _msccl_json,
    "teccl": _teccl,
}
"""The checker of each target whose files describe schedules rather than programs."""
