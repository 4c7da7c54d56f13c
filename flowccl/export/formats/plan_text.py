"""The operations in the text of an MSCCL++ plan as rows of numbers; those of other programs are written again first.

Operations of a pipeline, which a threadblock repeats with the next part of every chunk, lie among its other operations,
between two marks. What such a plan does with whole chunks, the plan with pipelines does part by part;
`export/proof/loops.py` checks that.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flowccl.arrays import pointers
from flowccl.export.formats.plan_tables import PlanError, field_of, number_of, numbers_of
from flowccl.export.proof.steps import F64, I64

if TYPE_CHECKING:
    from flowccl.export.formats.plan_text_kernels import OperationRows, Words

_MOST = 10**17  # of whole numbers: they are read as 64 bits
_MOST_IDS = 4096  # in a list of numbers
_LIST = re.compile(rb'"ops": \[\n')
_FIELDS: dict[str, tuple[str, ...]] = {  # of operations: how they name sources and targets, and their lists of numbers
    **dict.fromkeys(("nop",), ()),
    **dict.fromkeys(("copy", "re", "upkt", "repkt"), ("type", "type")),
    **dict.fromkeys(("put", "pws", "pwsf"), ("type", "buffer_id", "channel_ids")),
    **dict.fromkeys(("ppkt", "rppkt"), ("type", "buffer_id", "")),
    **dict.fromkeys(("signal", "rlxsignal", "wait", "rlxwait"), ("", "", "channel_ids")),
    **dict.fromkeys(("sem_acquire", "sem_release"), ("", "", "semaphore_ids")),
    "flush": ("", "any", "channel_ids"),
    "glres": ("switch_channel_id", "switch_channel_id"),
    "gstore": ("type", "switch_channel_id"),
}
_TYPED = ("put", "pws", "pwsf", "ppkt", "rppkt", "signal", "rlxsignal", "wait", "rlxwait")


class PlanOperations(NamedTuple):
    """The operations of all lists in a text: their rows and rates, the first one of each list, the bytes of a part."""

    rows: "OperationRows"
    rates: F64
    first: I64
    unit_bytes: int


def scanned(data: bytes) -> tuple[bytes, PlanOperations] | None:
    """Return the text of a plan with a number in the place of each list of operations, and these lists.

    None where the text does not have the form in which flowccl writes it.
    """
    from flowccl.export.formats.plan_text_kernels import WORDS, OperationRows, read_lists

    begin = [found.end() for found in _LIST.finditer(data)]
    if len(begin) != data.count(b'"ops"') - data.count(b'"pipeline"'):
        return None
    space = 2 + data.count(b'"name"') + data.count(b'"pipeline"')
    rows = OperationRows(
        np.zeros((space, 10), dtype=np.int64),
        np.zeros((1 + data.count(b'"index"'), 4), dtype=np.int64),
        np.zeros(1 << 16, dtype=np.int64),
    )
    rates, text = np.zeros(space), np.frombuffer(data or b"\n", dtype=np.uint8)
    end, first, ids, unit = read_lists(text, np.array(begin, dtype=np.int64), words_of(WORDS), rows, rates)
    if unit < 0:
        return None
    pieces, last = [], 0
    for k, (low, high) in enumerate(zip(begin, end.tolist(), strict=True)):
        pieces += [data[last : low - 2], str(k).encode()]
        last = high
    return b"".join([*pieces, data[last:]]), PlanOperations(rows._replace(ids=ids), rates, first, unit)


def words_of(values: Sequence[str]) -> "Words":
    """Return words as compiled loops take them."""
    from flowccl.export.formats.plan_text_kernels import Words

    text = np.frombuffer("".join(values).encode(), dtype=np.uint8)
    return Words(text, pointers([len(value) for value in values]))


def written_again(operations: list[Any], units: set[int], where: str) -> str:
    """Return a list of operations in flowccl's form, and collect the units of its pipelines; raise PlanError."""
    found = []
    for index, op in enumerate(operations):
        place = f"{where} step {index}"
        if field_of(op, "name", str, place) != "pipeline":
            found.append(_operation(op, place))
            continue
        context, repeated = field_of(op, "iter_context", dict, place), field_of(op, "ops", list, place)
        if number_of(context, "num_chunks", place, 1) != 1:
            raise PlanError(f"{place}: a pipeline over more than one chunk is not supported")
        if not repeated:
            raise PlanError(f"{place}: a pipeline without operations is not supported")
        unit = number_of(context, "unit_size", place, 1, _MOST)
        units.add(unit)
        head = f'{{"name":"pipeline","iter_context":{{"unit_size":{unit},"num_chunks":1}},"ops":[\n'
        found.append(head + ",\n".join(_operation(one, place) for one in repeated) + '\n],"end":true}')
    return '"ops": [\n' + ",\n".join(found) + "]"


def _operation(op: Any, where: str) -> str:
    name = field_of(op, "name", str, where)
    if name not in _FIELDS:
        raise PlanError(f"{where}: operation {name[:40]!r} is not supported")
    parts, fields = [f'{{"name":"{name}"'], _FIELDS[name]
    for key, named_by in zip(("src_buff", "dst_buff"), fields, strict=False):
        if named_by:
            rows = [_buffer(row, named_by, where) for row in field_of(op, key, list, where)]
            parts.append(f',"{key}":[{",".join(rows)}]')
    lists = {key: numbers_of(op, key, where, 0, _MOST) for key in fields[2:] if key}
    if any(len(found) > _MOST_IDS for found in lists.values()):
        raise PlanError(f"{where}: a list has more than {_MOST_IDS} numbers")
    if "channel_ids" in lists:
        parts.append(f',"channel_ids":[{",".join(map(str, lists["channel_ids"]))}]')
    if name in _TYPED:
        kind = field_of(op, "channel_type", str, where)
        if kind not in ("memory", "port"):
            raise PlanError(f"{where}: channel_type must be memory or port, got {kind[:40]!r}")
        parts.append(f',"channel_type":"{kind}"')
    if "semaphore_ids" in lists:
        parts.append(f',"semaphore_ids":[{",".join(map(str, lists["semaphore_ids"]))}]')
    return "".join([*parts, *_hints(op, where), "}"])


def _buffer(value: Any, named_by: str, where: str) -> str:
    if named_by == "any":  # only counted
        return '{"buffer_id":0,"index":0,"size":1}'
    place = [f'"{key}":{number_of(value, key, where, low, high)}' for key, low, high in _PLACE]
    if named_by != "type":
        return f'{{"{named_by}":{number_of(value, named_by, where, 0, _MOST)},{",".join(place)}}}'
    kind = field_of(value, "type", str, where)
    if kind not in ("i", "o", "s"):
        raise PlanError(f"{where}: a buffer must be i, o or s, got {kind[:40]!r}")
    return f'{{"type":"{kind}",{",".join(place)}}}'


_PLACE = (("index", 0, 2**31 - 1), ("size", 1, 2**20))


def _hints(op: Any, where: str) -> list[str]:
    """What the schedule says about a step: its message, start, rate and links; only flowccl's own files do."""
    parts = [f',"{key}":{number_of(op, key, where, 0, _MOST)}' for key in ("message", "start_ps") if key in op]
    rate = op.get("GBps", 0.0)
    if type(rate) not in (int, float) or not 0 <= rate < 1e9:
        raise PlanError(f"{where}: GBps must be a number of at least 0, got {str(rate)[:40]!r}")
    if rate:
        parts.append(f',"GBps":{max(rate, 1e-6):.15g}')
    if "links" in op:
        links = numbers_of(op, "links", where, 0, 2**31)[:_MOST_IDS]
        parts.append(f',"links":[{",".join(map(str, links))}]')
    return [*parts, ',"leaves":true'] if op.get("leaves") is True else parts
