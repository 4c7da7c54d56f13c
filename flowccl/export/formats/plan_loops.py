"""Pipelines of MSCCL++ plans: operations that a threadblock repeats, each time with the next part of every chunk.

The readers get a plan without pipelines: their operations lie among those of the threadblock, between two marks. What
such a plan does with whole chunks, the plan with pipelines does part by part; `export/proof/loops.py` checks that.
"""

import json
import re
from typing import Any

from flowccl.export.formats.plan_fields import PlanError, field_of, number_of
from flowccl.files import parse_json

REPEATED = '{"name":"pipeline","iter_context":{"unit_size":', ',"num_chunks":1},"ops":[\n', '\n],"end":true}'
"""What comes before the unit of repeated operations, before the operations, and after them."""
LOOP, END = "loop", "loop_end"
"""The marks, as names of operations."""
_BEGIN = re.compile(re.escape(REPEATED[0].encode()) + rb"(\d+)" + re.escape(REPEATED[1].encode()))
_FLAT_BEGIN, _FLAT_END = f'{{"name":"{LOOP}"}},\n'.encode(), f',\n{{"name":"{END}"}}'.encode()


def without_pipelines(data: bytes, name: str) -> tuple[bytes, int]:
    """Return the text of a plan with marks in the place of its pipelines, and the bytes of a part; 0 without any.

    Raise PlanError where the pipelines are not supported.
    """
    if b'"pipeline"' not in data:
        return data, 0
    units = {int(unit) for unit in _BEGIN.findall(data)}
    flat = _BEGIN.sub(_FLAT_BEGIN, data).replace(REPEATED[2].encode(), _FLAT_END)
    if b'"pipeline"' in flat:  # not written by flowccl
        units = set()
        plan = parse_json(data, name)
        for rank, gpu in enumerate(field_of(plan, "gpus", list, "plan")):
            for number, block in enumerate(field_of(gpu, "threadblocks", list, f"gpu {rank}")):
                where = f"gpu {rank} threadblock {number}"
                block["ops"] = _flat(field_of(block, "ops", list, where), units, where)
        flat = json.dumps(plan).encode()
    if len(units) > 1:
        raise PlanError(f"pipelines with different units are not supported, got {sorted(units)}")
    return flat, max(units)


def _flat(operations: list[Any], units: set[int], where: str) -> list[Any]:
    """Return operations with those of pipelines among them, between marks; collect the units of the pipelines."""
    result: list[Any] = []
    for index, operation in enumerate(operations):
        if field_of(operation, "name", str, f"{where} step {index}") != "pipeline":
            result.append(operation)
            continue
        place = f"{where} step {index}"
        context = field_of(operation, "iter_context", dict, place)
        if number_of(context, "num_chunks", place, 1) != 1:
            raise PlanError(f"{place}: a pipeline over more than one chunk is not supported")
        units.add(number_of(context, "unit_size", place, 1))
        result += [{"name": LOOP}, *field_of(operation, "ops", list, place), {"name": END}]
    return result
