"""`flowccl profile` between real processes; needs the extras torch and mpi, and an mpiexec (`make test-run`)."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.errors import InputError
from flowccl.profile.measurements import count_lines, load_measurements
from flowccl.profile.probes import PlanOptions
from flowccl.profile.processes import measure_machine
from flowccl.profile.worker import take_measurements
from flowccl.topology.files import load_topology
from tests.profile.simulated import OPTIONS
from tests.run.test_processes import needs_mpi, needs_torch

QUICK = PlanOptions(sizes=(1_000, 100_000), repeats=3, repeats_together=3)
ON = [pytest.param("gloo", marks=needs_torch), pytest.param("mpi", marks=needs_mpi)]


@pytest.mark.slow
@pytest.mark.parametrize("on", ON)
def test_a_real_profile_is_complete_and_synth_accepts_it(on, tmp_path, capsys):
    out = tmp_path / "machine.json"
    assert main(["profile", "--on", on, "--ranks", "3", "--repeats", "4", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(rf"profile +3 ranks on {on}, \d+ times", said)
    measured = load_measurements(tmp_path / "machine.measurements.json")
    assert measured.complete
    assert load_topology(out).num_gpus == 3
    assert all((one.seconds > 0).all() for one in measured.probes)
    assert not list(tmp_path.glob("*.part"))
    schedule = str(tmp_path / "ag.json")
    assert main(["synth", str(out), "allgather", "--size", "1MB", "--time-limit", "1", "--out", schedule]) == 0
    assert main(["profile", "--check", str(out), schedule, "--on", on, "--size", "1MB", "--iterations", "2"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r" +1 MB( +\S+ [um]?s){4} +[+-]\d+\.\d% +\d+\.\d\d +0", rows[-1])
    assert main(["profile", "--from", str(tmp_path / "machine.measurements.json"), "--out", str(out)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("on", ON)
def test_measurements_are_kept_when_a_rank_dies(on, tmp_path, capsys):
    """A rank is killed during the run: exit code 2, the message names the rank, and the measurements can be fitted."""
    out, part = tmp_path / "m.json", tmp_path / "m.measurements.json.part"
    killer = threading.Thread(target=_kill_a_rank, args=(on, part))
    killer.start()
    code = main(["profile", "--on", on, "--ranks", "3", "--repeats", "60", "--out", str(out)])
    killer.join()
    said = capsys.readouterr().err
    assert code == 2
    assert re.search(r"rank \d died .* after \d+ of \d+ rounds; ", said), said
    assert "the measurements are kept; fit them with: flowccl profile --from " in said
    kept = load_measurements(tmp_path / "m.measurements.json")
    assert 0 < kept.rounds_done < kept.rounds
    assert not out.exists()
    assert main(["profile", "--from", str(tmp_path / "m.measurements.json"), "--out", str(out)]) == 0
    assert load_topology(out).num_gpus == 3


def _kill_a_rank(on: str, part: Path) -> None:
    """Kill one process of the job when it has measured some links."""
    while count_lines(part) < 20:
        time.sleep(0.01)
    marks = {"mpi": "flowccl.run.launch", "gloo": "multiprocessing.forkserver"}
    mine = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
    table = [line.split(None, 2) for line in mine.splitlines()[1:]]
    parents = {int(pid): int(parent) for pid, parent, *_ in table}

    def ours(pid: int) -> bool:
        while pid in parents:
            if parents[pid] == os.getpid():
                return True
            pid = parents[pid]
        return False

    ranks = [int(pid) for pid, _, args in table if marks[on] in args and "mpiexec" not in args and ours(int(pid))]
    os.kill(max(ranks), signal.SIGKILL)


@pytest.mark.slow
@needs_mpi
def test_under_mpiexec_rank_0_writes(tmp_path):
    from flowccl.run.launch import find_mpiexec, mpi_environment

    worker = [sys.executable, "-m", "flowccl", "profile", "--on", "mpi", "--repeats", "3", "--out", "m.json"]
    done = subprocess.run(
        [find_mpiexec(), "-n", "2", *worker],
        env=mpi_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote m.json; measurements in m.measurements.json") == 1
    assert load_topology(tmp_path / "m.json").num_gpus == 2


class SingleProcess:
    """A backend of one process."""

    process, processes = 0, 1

    def allreduce(self, numbers):
        return list(numbers)


def test_one_process_is_too_few(tmp_path):
    with pytest.raises(InputError, match="a profile needs at least 2 ranks, got 1"):
        take_measurements(SingleProcess(), "mpi", OPTIONS, tmp_path / "part")


@needs_mpi
@pytest.mark.parametrize("ranks", [0, 1])
def test_fewer_than_two_ranks(ranks, tmp_path, capsys):
    assert main(["profile", "--on", "mpi", "--ranks", str(ranks), "--out", str(tmp_path / "m.json")]) == 2
    words = f"a profile needs at least 2 ranks, got {ranks}: there is no link to measure; give --ranks 2"
    assert capsys.readouterr().err == f"flowccl: error: {words}\n"
    assert list(tmp_path.iterdir()) == []


@needs_torch
def test_nccl_without_enough_gpus(tmp_path):
    import torch

    gpus = torch.cuda.device_count()
    with pytest.raises(InputError, match=f"--on nccl needs one GPU per rank: {gpus + 2} ranks, but {gpus} GPU"):
        measure_machine("nccl", gpus + 2, QUICK, tmp_path / "m.json", lambda *_: None)
