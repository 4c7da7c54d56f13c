"""MSCCL++ plans: the same steps, however the text is written, and what is wrong with them."""

import json
from dataclasses import fields

import numpy as np
import pytest

from flowccl.errors import FileError
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.program import lower_program
from flowccl.export.proof.steps import StepArrays, table_of
from tests.export.test_program import random_case
from tests.export.test_switch import switched

_NUMBERED = ("name", "names", "group", "groups", "path", "paths", "push", "pop", "connections", "by_proxy")


def facts(table: StepArrays) -> dict[str, object]:
    """What a table says, without the numbers that names, groups and connections have in it."""

    def tokens(ptr: np.ndarray, keys: np.ndarray) -> list[list[str]]:
        names = [str(table.connections[key]) for key in keys.tolist()]
        return [sorted(names[a:b]) for a, b in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True)]

    plain = {one.name: getattr(table, one.name).tolist() for one in fields(table) if one.name not in _NUMBERED}
    return plain | {
        "name": [table.names[n] for n in table.name.tolist()],
        "group": [table.groups[g] if g >= 0 else None for g in table.group.tolist()],
        "path": [table.paths[path] if path >= 0 else None for path in table.path.tolist()],
        "push": tokens(table.push_ptr, table.push),
        "pop": tokens(table.pop_ptr, table.pop),
    }


def agree(data: bytes) -> None:
    """A plan as flowccl writes it, and the same as another program might write it, have the same steps."""
    other = json.dumps(dict(reversed(json.loads(data).items())), indent=1).encode()
    assert facts(table_of(parse_mscclpp(data, "plan"))) == facts(table_of(parse_mscclpp(other, "plan")))


@pytest.mark.parametrize("seed", [0, 7, 10, *(pytest.param(n, marks=pytest.mark.slow) for n in range(24, 30))])
def test_both_forms_have_the_same_steps(seed: int) -> None:
    agree(lower_program(random_case(seed)).data)


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_both_forms_have_the_same_operations_of_switches(collective: str) -> None:
    agree(lower_program(switched("dgx_h100:2", collective)).data)


def test_steps_as_objects() -> None:
    program = parse_mscclpp(lower_program(random_case(1)).data, "plan")
    first = program.operations[0]
    assert str(first).startswith("gpu 0 threadblock 0 step 0 (")
    assert program.operations[0] is first
    assert len(table_of(program)) == len(program.operations) == len(list(program.operations))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"name":"put"', b'"name":"bogus"', "operation 'bogus' is not supported"),
        (b'"size":', b'"size":1.5,"was":', "size must be a whole number"),
        (b'"index":', b'"index":-7', "index must be 0 to"),
        (b'"index":0', b'"index":00', "not JSON"),
        (b'{"name":"put"', b'{"name":"put","name":"put"', "key 'name' appears twice in one object"),
        (b'"channel_ids":[0]', b'"channel_ids":[99]', "channel_ids must contain whole numbers"),
        (b'"buffer_id":0', b'"buffer_id":99', "buffer_id must be 0 to"),
        (b'"ops": [', b'"ops": 0, "was": [', "ops must be a list"),
        (b"]}\n", b"]", "not JSON"),
    ],
)
def test_what_is_wrong_is_named(old: bytes, new: bytes, words: str) -> None:
    data = lower_program(random_case(1)).data
    assert old in data
    changed = data.replace(old, new, 1)
    with pytest.raises(FileError, match=words):
        parse_mscclpp(changed, "plan")
