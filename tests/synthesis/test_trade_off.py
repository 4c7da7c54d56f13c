"""The trade-off between completion time and messages."""

import json

import pytest

from flowccl import synthesize
from flowccl.cli import main
from flowccl.synthesis.trade_off import trade_off
from flowccl.topology.machines import machine


@pytest.mark.parametrize("runtime", ["ideal", "mscclpp"])
def test_more_messages_are_earlier(runtime):
    result = synthesize(machine("dgx1"), "allgather", 2**20, runtime=runtime, steps=30, lean=0)
    front = trade_off(result, 80)
    times = [point.finish_us if point.program_us is None else point.program_us for point in front]
    messages = [point.messages_per_gpu for point in front]
    assert len(front) > 1
    assert times == sorted(times, reverse=True)
    assert messages == sorted(set(messages))
    assert all((point.program_us is None) == (runtime == "ideal") for point in front)


def test_table_json_and_picture(tmp_path, capsys):
    picture = tmp_path / "front.png"
    words = f"dgx1 allgather --size 256KiB --steps 12 --quiet --trade-off {picture}".split()
    assert main(["synth", *words]) == 0
    assert "messages per GPU" in capsys.readouterr().out
    assert picture.stat().st_size > 1000
    assert main(["synth", *words[:-1], "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["trade_off"]
    assert {"messages_per_gpu", "finish_us", "program_us", "chunks"} <= rows[0].keys()
