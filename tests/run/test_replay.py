"""Files give the results of the definition on numpy arrays; damaged ones do not."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from flowccl.cli import main
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import RuntimeProgram
from flowccl.run.replay import execute_program, replay
from flowccl.runtimes.limits import LIMITS
from tests.export.cases import PROVABLE, made, plan_value, random_schedule, read, schedule_of
from tests.export.test_interpreter import all_sends_first, pair_schedule

COLLECTIVES = ("allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast", "reduce", "gather", "scatter")
PAIRS = [
    (collective, target)
    for collective in COLLECTIVES
    for target in PROVABLE
    if collective in LIMITS[target].collectives
]


def runs(program: RuntimeProgram) -> set[str]:
    """Return the kinds of findings of three runs in different orders."""
    return {finding.kind for seed in range(3) for finding in replay(program, seed=seed)}


@pytest.mark.parametrize(("collective", "target"), PAIRS)
def test_files_give_exact_numbers(collective: str, target: str) -> None:
    for inplace in (False, True):
        if target == "mscclpp":
            alone = collective == "broadcast"  # it does not run in place
            program = read(made(schedule_of("dgx1", collective), target, inplace=inplace and not alone), target)
        else:
            program = read(made(schedule_of("dgx1", collective), target, inplace=inplace, instances=2), target)
        assert runs(program) == set()
        assert replay(program, dtype="float16", per_chunk=1) == []


def random_files(seeds: range) -> int:
    count = 0
    for seed in seeds:
        schedule, root = random_schedule(seed)
        for target in PROVABLE:
            if schedule.demand.collective in LIMITS[target].collectives:
                alone = target == "mscclpp" and schedule.demand.collective in ("broadcast", "alltoall")  # not in place
                program = read(made(schedule, target, inplace=bool(seed % 2) and not alone), target, root)
                if target == "mscclpp" and interpret(program):
                    continue  # `export` refuses such a program
                assert runs(program) == set(), (seed, target)
                count += 1
    return count


def test_files_of_random_schedules_give_exact_numbers() -> None:
    assert random_files(range(2000, 2010)) >= 20


@pytest.mark.slow
def test_files_of_100_random_schedules_give_exact_numbers() -> None:
    assert random_files(range(100)) >= 300


def test_the_numbers_are_those_of_the_caller() -> None:
    program = read(made(pair_schedule("reduce_scatter"), "rccl"), "rccl")
    inputs = [np.array([1.5, 2, 3, 4]), np.array([10, 20, 30, 40.25])]
    outputs = [np.zeros(2), np.zeros(2)]
    execute_program(program, inputs, outputs, per_chunk=2)
    assert [output.tolist() for output in outputs] == [[11.5, 22.0], [33.0, 44.25]]


class TestDamage:
    """Damage that the interpreter finds by logic also gives wrong numbers."""

    def damaged(self, target: str, pattern: str, into: str, collective: str = "allgather") -> set[str]:
        text, count = re.subn(pattern, into, made(schedule_of("dgx1", collective), target).decode(), count=1)
        assert count == 1
        return runs(read(text.encode(), target))

    @pytest.mark.parametrize("target", ["msccl", "executor", "rccl"])
    def test_xml(self, target: str) -> None:
        offset = r'(type="r"[^/]*dstoff=)"2"'
        assert self.damaged(target, offset, r'\1"3"') == {"number"}
        assert self.damaged(target, r'(type="s" srcbuf="i" srcoff=)"0"', r'\1"9"') == {"run"}
        swapped = r'(type="s" srcbuf="i" )(srcoff="\d+")([^/]*/>\s*<step s="\d+" type="s" srcbuf="i" )(srcoff="\d+")'
        assert self.damaged(target, swapped, r"\1\4\3\2", "alltoall") == {"number"}
        assert "run" in self.damaged(target, r'hasdep="1"', 'hasdep="0"')  # the completion is not published: deadlock
        late = r'(type="s"[^/]*)depid="\d+" deps="\d+"'
        assert "number" in self.damaged(target, late, r'\1depid="-1" deps="-1"')

    def test_more_in_flight_than_the_fifo_depth(self) -> None:
        found = replay(read(all_sends_first("Simple", 3, "msccl"), "msccl"))
        assert [finding.kind for finding in found] == ["run"]
        assert re.search(r"deadlock: gpu \d threadblock 0 step 2 \(s\) waits forever", found[0].message)
        assert replay(read(all_sends_first("Simple", 2, "msccl"), "msccl")) == []

    def test_counted_twice(self) -> None:
        plan = plan_value(pair_schedule("reduce_scatter"))
        ops = [op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
        twice = next(op for op in ops if op["name"] == "re")
        twice["src_buff"].append(twice["src_buff"][0])
        found = replay(read(json.dumps(plan).encode(), "mscclpp"), calls=1)
        assert len(found) == 1
        assert re.match(
            r"gpu 0, output chunk 0: element \d is \d+, must be \d+ \(\d of 3 are wrong\)", found[0].message
        )


def test_check_export_shows_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rs.xml"
    path.write_bytes(made(pair_schedule("reduce_scatter"), "msccl"))
    assert main(["check-export", str(path), "--to", "msccl", "--numbers"]) == 0
    assert "run on numpy in 3 orders: every element is correct" in capsys.readouterr().out
    path.write_text(path.read_text().replace('type="rrc"', 'type="r"', 1))
    assert main(["check-export", str(path), "--to", "msccl", "--numbers"]) == 1
    printed = capsys.readouterr().out
    assert "result: gpu 0, output chunk 0: lacks rank 0's chunk 0" in printed
    assert "number: gpu 0, output chunk 0: element 0 is" in printed
