"""An alltoallv as a plan of MSCCL++: proved by the interpreter, run on numbers, and refused where it does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest

from flowccl.cli import main
from flowccl.errors import FileError, InputError
from flowccl.export.exporting import ExportOptions, check, prove
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.proof.interpreter import interpret
from flowccl.moe.plan_params import COARSE
from flowccl.moe.planner import Planner
from flowccl.schedule.schedule import Schedule
from flowccl.topology.machines import machine
from tests.moe.machines import random_cluster, random_matrix


def planned(name: str, sizes: object, unit: int = 16) -> Schedule:
    return Planner(machine(name), unit_bytes=unit).plan(np.array(sizes), params=COARSE).schedule()


SIZES = [[99, 4096, 0, 16], [0, 0, 0, 0], [65536, 160, 0, 3200], [4800, 16, 0, 7]]


def test_blocks_of_different_sizes_one_after_the_other() -> None:
    """Rank 0 sends 256 + 1 units of 16 bytes, rank 1 nothing; rank 2 receives nothing; diagonals are not in buffers."""
    made, program = prove(planned("rail:2x2", SIZES), "mscclpp", ExportOptions(sms=8))
    plan = json.loads(made[0])
    unit = plan["size_bytes"] // program.chunks  # type: ignore[union-attr]
    blocks = np.array(plan["block_chunks"]) * unit
    wanted = np.array(SIZES)
    np.fill_diagonal(wanted, 0)
    assert (blocks == wanted).all()
    assert unit % 16 == 0
    assert [gpu["input_chunks"] * unit for gpu in plan["gpus"]] == [4112, unit, 68896, 4816]
    assert [gpu["output_chunks"] * unit for gpu in plan["gpus"]] == [70336, 4272, unit, 3216]


def test_the_proof_finds_a_wrong_block() -> None:
    made, program = prove(planned("rail:2x2", SIZES), "mscclpp", ExportOptions(sms=8))
    assert interpret(program) == []  # type: ignore[arg-type]
    plan = json.loads(made[0])
    plan["block_chunks"][0][1], plan["block_chunks"][0][3] = plan["block_chunks"][0][3], plan["block_chunks"][0][1]
    kinds = {finding.kind for finding in interpret(parse_mscclpp(json.dumps(plan).encode(), "plan"))}
    assert kinds & {"bounds", "result"}
    del plan["block_chunks"]
    with pytest.raises(FileError, match="block_chunks is missing"):
        parse_mscclpp(json.dumps(plan).encode(), "plan")


def check_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_cluster(rng)
    unit = int(rng.choice([16, 48, 512]))
    sizes = random_matrix(rng, topology.num_gpus) // 64 * unit
    sizes[0, -1] += unit
    schedule = Planner(topology, unit_bytes=unit).plan(sizes, params=COARSE).schedule()
    if schedule.demand.chunk_bytes.sum() / unit < 1e5:
        prove(schedule, "mscclpp", ExportOptions(sms=132))  # raises where the program would be wrong


@pytest.mark.parametrize("seed", range(4))
def test_random_machines(seed: int) -> None:
    check_random(seed)


@pytest.mark.slow
def test_many_random_machines() -> None:
    for seed in range(4, 80):
        check_random(seed)


def test_packets_inside_a_host() -> None:
    sizes = np.arange(64).reshape(8, 8) * 160
    schedule = Planner(machine("dgx_h100:1"), unit_bytes=16).plan(sizes, params=COARSE).schedule()
    _, program = prove(schedule, "mscclpp", ExportOptions(protocol="LL"))
    assert program is not None
    assert program.packets


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"rank 0 sends one of \d+ bytes to rank 1; use a matrix in multiples"):
        prove(planned("rail:2x2", [[0, 4097, 0, 0]] + [[0] * 4] * 3), "mscclpp", ExportOptions(sms=8))
    with pytest.raises(InputError, match="an alltoallv does not run in place"):
        prove(planned("rail:2x2", SIZES), "mscclpp", ExportOptions(sms=8, inplace=True))
    with pytest.raises(InputError, match="msccl does not support alltoallv"):
        prove(planned("rail:2x2", SIZES), "msccl", ExportOptions(sms=8))


def alltoallv_matrix() -> np.ndarray:
    sizes = 64 * (np.arange(4)[:, None] + 2 * np.arange(4)[None, :])
    np.fill_diagonal(sizes, 0)
    return sizes


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix, schedule, plan = (str(tmp_path / name) for name in ("m.csv", "s.json", "p.json"))
    Path(matrix).write_text("\n".join(",".join(map(str, row)) for row in alltoallv_matrix().tolist()))
    assert main(["synth", "rail:2x2", "alltoallv", "--matrix", matrix, "--out", schedule, "--gap", "9"]) == 0
    assert main(["export", schedule, "--to", "mscclpp", "--sms", "8", "--out", plan]) == 0
    assert "sizes         this matrix only" in capsys.readouterr().out
    assert main(["check-export", plan, "--to", "mscclpp"]) == 0
    assert "PROVED: alltoallv on 4 GPUs" in capsys.readouterr().out
    program, findings = check(plan, "mscclpp")
    assert findings == []
    assert program.blocks is not None
    unit = program.made_for_bytes // program.chunks
    assert (program.blocks * unit == alltoallv_matrix()).all()
    assert main(["check-export", plan, "--to", "mscclpp", "--numbers"]) == 2
