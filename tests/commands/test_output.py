"""The text that commands print: the rows of a result, singular and plural, the help."""

import re

import pytest

from flowccl.cli import main
from flowccl.show import describe_gap, describe_result, describe_schedule, describe_topology
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.wording import counted, later_than, listed, percent

COMMANDS = (
    "synth",
    "verify",
    "show",
    "machines",
    "plot",
    "compare",
    "advise",
    "run",
    "profile",
    "import",
    "export",
    "check-export",
)


@pytest.fixture(scope="module")
def result():
    return synthesize(machine("ring:2"), "allgather", 2_000, chunks=1, steps=3)


def test_the_result_has_a_short_repr(result):
    lines = repr(result).splitlines()
    assert lines[0] == "Result"
    names = [line[2:18].strip() for line in lines[1:]]
    assert names == [
        "machine",
        "collective",
        "chunks per block",
        "method",
        "completion time",
        "algbw, busbw",
        "transfers",
        "lower bound",
        "gap",
        "proof",
    ]
    assert lines[1] == "  machine           ring:2, 2 GPUs"
    assert lines[2] == "  collective        allgather, 2 KB"
    assert lines[9] == "  gap               0.00 %"


def test_an_optimal_result_says_so(result):
    rows = describe_result(result).splitlines()
    assert "collective       allgather, 2 KB, 1 chunk per block" in rows
    assert "gap              optimal: the completion time equals the lower bound" in rows


def test_the_gap_is_in_percent():
    assert describe_gap(0.0009, optimal=False) == "0.09 % above the lower bound"


def test_what_rounds_to_zero_has_no_sign():
    assert percent(-1e-9) == percent(0.0) == "0.00 %"
    assert percent(-0.01) == "-1.00 %"


def test_a_loss_is_later_and_a_gain_is_earlier():
    assert later_than(0.05, "the schedule") == "5.00 % later than the schedule"
    assert later_than(-0.0925, "the schedule") == "9.25 % earlier than the schedule"
    assert later_than(1e-9, "the schedule") == "no later than the schedule"


def test_one_thing_is_singular(result):
    assert counted(1, "chunk") == "1 chunk"
    assert counted(2, "chunk") == "2 chunks"
    assert counted(0, "transfer") == "0 transfers"
    assert counted(2, "switch", "switches") == "2 switches"
    assert not re.search(r"\b1 \w+s\b", describe_schedule(result.schedule))
    assert "nodes        4 GPUs, 1 switch" in describe_topology(machine("star:4"))


def test_long_lists_are_shortened():
    assert listed("abc") == "a, b, c"
    assert listed(map(str, range(20))) == "0, 1, 2, 3, 4, 5, 6, 7, ... (20 in total)"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example_and_short_metavars(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    assert out.startswith(f"usage: flowccl {command}")
    assert f"  flowccl {command}" in out
    assert all(len(word) <= 12 for word in re.findall(r"--[a-z-]+ ([A-Z_]+)\b", out))
    for word in ("who", "whom", "floor", "judge", "setup", "way"):
        assert not re.search(rf"\b{word}s?\b", out), word
