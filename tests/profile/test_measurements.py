"""Raw measurements are read from complete files and from interrupted runs; invalid files are errors."""

import json

import numpy as np
import pytest

from flowccl.errors import FileError
from flowccl.profile.machine import make_profile
from flowccl.profile.measurements import (
    add_line,
    count_lines,
    finish_lines,
    head_to_json,
    load_measurements,
    measurements_path,
    round_to_json,
)
from flowccl.profile.show import describe_missing
from tests.profile.simulated import OPTIONS, profile_of, random_machine

MEASURED = profile_of(random_machine(1), 7)


def write_lines(path, rounds):
    add_line(path, head_to_json("mpi", MEASURED.hosts, OPTIONS, len(MEASURED.probes)))
    for one in MEASURED.probes[:rounds]:
        add_line(path, round_to_json((one.probe,), [one.seconds], one.wall_s))


def test_lines_become_one_file_with_the_same_fit(tmp_path):
    part, path = tmp_path / "m.part", tmp_path / "m.json"
    write_lines(part, len(MEASURED.probes))
    assert count_lines(part) == len(MEASURED.probes)
    done = finish_lines(part, path)
    assert done.complete
    assert not part.exists()
    again = load_measurements(path)
    assert [one.probe for one in again.probes] == [one.probe for one in MEASURED.probes]
    assert all(np.array_equal(a.seconds, b.seconds) for a, b in zip(again.probes, MEASURED.probes, strict=True))
    assert make_profile(again).topology == make_profile(MEASURED).topology


def test_an_interrupted_run_is_read_up_to_its_last_complete_line(tmp_path):
    part = tmp_path / "m.part"
    write_lines(part, 16)  # two links
    with part.open("a") as file:
        file.write('{"wall_s": 0.1, "pro')
    kept = load_measurements(part)
    assert (kept.rounds_done, kept.complete) == (16, False)
    assert set(make_profile(kept).fits) == {one.probe.links[0] for one in MEASURED.probes[:16]}
    assert describe_missing(kept).startswith("not measured: gpu0 -> gpu2, ")


def test_measurements_are_stored_beside_the_machine():
    assert measurements_path("a/machine.json").as_posix() == "a/machine.measurements.json"
    assert measurements_path("machine.json.gz").as_posix() == "machine.measurements.json.gz"


def good():
    head = head_to_json("mpi", MEASURED.hosts, OPTIONS, 1)
    one = MEASURED.probes[0]
    return json.loads(json.dumps(head | {"measured": [round_to_json((one.probe,), [one.seconds], 1.0)]}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda v: v.pop("format"), "not a measurements file"),
        (lambda v: v.update(version=2), "not a measurements file"),
        (lambda v: v.pop("hosts"), "invalid measurements: KeyError 'hosts'"),
        (lambda v: v["measured"][0]["probes"][0].update(links=[[0, 9]]), "link 0 -> 9 does not connect two of 4 ranks"),
        (lambda v: v["measured"][0]["probes"][0].update(links=[[0, 0]]), "link 0 -> 0 does not connect two of 4 ranks"),
        (lambda v: v["measured"][0]["probes"][0].update(seconds=[1.0]), "needs one time and one size for each"),
        (lambda v: v["measured"][0]["probes"][0].update(chunk_bytes=[0]), "must send at least 1 chunk of 1 byte"),
        (lambda v: v["measured"][0]["probes"][0].update(seconds=[["x"]]), "invalid measurements: ValueError"),
        (lambda v: v["options"].update(surprise=1), "invalid measurements: TypeError"),
    ],
)
def test_invalid_files_are_errors(change, words, tmp_path):
    value = good()
    load = tmp_path / "m.json"
    load.write_text(json.dumps(value))
    assert load_measurements(load).rounds_done == 1
    change(value)
    load.write_text(json.dumps(value))
    with pytest.raises(FileError, match=words):
        load_measurements(load)


def test_a_file_without_lines(tmp_path):
    (tmp_path / "m.part").write_text("")
    with pytest.raises(FileError, match="the file has no lines; nothing was measured"):
        load_measurements(tmp_path / "m.part")
