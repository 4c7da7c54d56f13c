"""Colours and the live line appear only on terminals; pipes and files get plain text."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest

from flowccl.commands.terminal import CountLine, ProgressLine, print_error, print_text
from flowccl.result import Progress

ESCAPE = "\x1b["


def on_terminal(code: str, **environment: str) -> str:
    """What a Python program writes to a terminal."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    variables |= {"TERM": "xterm-256color", "COLUMNS": "160", **environment}
    with subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=variables) as child:
        os.close(theirs)
        parts = []
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if not select.select([ours], [], [], 1.0)[0]:
                continue
            try:
                parts.append(os.read(ours, 65536))
            except OSError:  # the program has exited
                break
            if not parts[-1]:
                break
        child.wait(60)
    os.close(ours)
    return b"".join(parts).decode()


PRINT = "from flowccl.commands.terminal import *; print_text('VALID: 3\\ngap          0.09 %'); print_error('bad')"


def test_a_terminal_gets_colours():
    text = on_terminal(PRINT)
    assert f"{ESCAPE}32mVALID{ESCAPE}0m: 3" in text
    assert f"{ESCAPE}36mgap{ESCAPE}0m          0.09 %" in text
    assert f"flowccl: {ESCAPE}31merror{ESCAPE}0m: bad" in text


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_colours_where_they_are_not_wanted(environment):
    text = on_terminal(PRINT, **environment)
    assert text.split("\r\n") == ["VALID: 3", "gap          0.09 %", "flowccl: error: bad", ""]


def test_a_pipe_gets_plain_text_even_if_colours_are_forced(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_text("VALID: 3")
    print_error("bad")
    assert capsys.readouterr() == ("VALID: 3\n", "flowccl: error: bad\n")


LINE = """
import time
from flowccl.commands.terminal import ProgressLine
from flowccl.result import Progress
line = ProgressLine(QUIET, 10.0)
line.phase("compiling, once: greedy")
time.sleep(1.5)
line.show(Progress(44.0, 40.0, "lns", 2.0))
time.sleep(0.3)
line.clear()
print("end")
"""


def test_the_live_line_shows_phase_time_best_bound_and_gap():
    text = on_terminal(LINE.replace("QUIET", "False"))
    for part in ("compiling, once: greedy", "searching", "best 44 us (lns)", "lower bound 40 us", "gap 10.00 %"):
        assert part in text
    assert text.endswith("end\r\n")


def test_the_live_line_has_no_colours_with_no_color():
    text = on_terminal(LINE.replace("QUIET", "False"), NO_COLOR="1")
    assert "best 44 us (lns)" in text
    assert f"{ESCAPE}32m" not in text


def test_quiet_and_dumb_terminals_have_no_live_line():
    assert on_terminal(LINE.replace("QUIET", "True")) == "end\r\n"
    assert on_terminal(LINE.replace("QUIET", "False"), TERM="dumb") == "end\r\n"


def test_a_pipe_gets_no_live_line(capsys):
    line, rounds = ProgressLine(), CountLine(False, "measuring", "rounds")
    line.phase("searching")
    line.show(Progress(44.0, 40.0, "lns", 2.0))
    rounds.show(1, 2)
    line.clear()
    rounds.clear()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("columns", "facts"),
    [
        (80, ["best 44 us", "gap 10.00 %"]),
        (100, ["best 44 us (lns)", "gap 10.00 %"]),
        (130, ["best 44 us (lns)", "gap 10.00 %", "Ctrl-C: keep the best"]),
    ],
)
def test_a_narrow_terminal_gets_a_short_line(monkeypatch, columns, facts):
    monkeypatch.setenv("COLUMNS", str(columns))
    line = ProgressLine()
    line.enabled, line._live = True, object()  # already on the screen
    line.show(Progress(44.0, 40.0, "lns", 5.0))
    assert [fact for fact in line.facts if fact != "lower bound 40 us"] == facts


def test_the_bar_shows_the_used_part_of_the_time_limit():
    line = ProgressLine(time_limit_s=10.0)
    assert line.done() is None
    line.enabled, line._live = True, object()  # already on the screen
    line.show(Progress(44.0, None, "lns", 5.0))
    assert line.done() == pytest.approx(0.5, abs=0.05)
