"""Faults: lost and slow links, by name."""

import argparse
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowccl import Limit, Link, Node, Topology, machine, synthesize, with_faults
from flowccl.cli import _Parsers, main
from flowccl.errors import InputError
from flowccl.topology.faults import _components, find_faults


def test_a_lost_nic_in_both_directions() -> None:
    whole = machine("dgx_h100:2")
    broken = with_faults(whole, without=["gpu3 <-> rail3"])
    assert len(broken.links) == len(whole.links) - 2
    assert {broken.link_name(k) for k in range(len(broken.links))} == {
        whole.link_name(k) for k in range(len(whole.links))
    } - {"gpu3 -> rail3", "rail3 -> gpu3"}
    assert broken.nodes == whole.nodes
    assert broken.name == "dgx_h100:2, without gpu3 <-> rail3"
    assert broken.fingerprint != whole.fingerprint


def test_a_slow_link_in_one_direction() -> None:
    broken = with_faults(machine("dgx_h100:2"), slow=["gpu3->rail3=100Gb/s"])
    rates = {broken.link_name(k): float(broken.link_GBps[k]) for k in range(len(broken.links))}
    assert (rates["gpu3 -> rail3"], rates["rail3 -> gpu3"]) == (12.5, 50.0)


def test_limits_and_changes_follow_the_links() -> None:
    nodes = tuple(Node(name=f"gpu{i}") for i in range(3))
    ends = [(0, 1), (1, 0), (0, 1), (1, 2), (2, 1), (2, 0)]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=10, changes=((5, 4), (9, 8))) for a, b in ends)
    limits = (
        Limit(name="parallel", links=(0, 2), bandwidth_GBps=12),
        Limit(name="bus", links=(0, 3, 5), bandwidth_GBps=15),
    )
    whole = Topology("three", nodes, links, limits)
    broken = with_faults(whole, without=["gpu2 -> gpu1"], slow=["gpu1 <-> gpu0 = 6"])
    assert [limit.links for limit in broken.limits] == [(0, 2), (0, 3, 4)]
    assert [link.changes for link in broken.links] == [((5, 4), (9, 6))] * 3 + [((5, 4), (9, 8))] * 2
    whole = replace(whole, links=(*links, Link(src=0, dst=2, bandwidth_GBps=10)))
    lost = with_faults(whole, without=["gpu0 -> gpu1"])
    assert [(limit.name, limit.links) for limit in lost.limits] == [("bus", (1, 3))]


def test_a_collective_on_a_machine_with_a_lost_link_meets_its_bound() -> None:
    """A ring without one link is a line; gpu0's data crosses the other three links."""
    broken = with_faults(machine("ring:4:latency=0us"), without=["gpu3 <-> gpu0"])
    line = machine("line:4:latency=0us")
    finish = [synthesize(t, "allgather", 4_000_000, time_limit_s=2, lean=0).schedule.finish_us for t in (broken, line)]
    assert finish[0] == finish[1] == pytest.approx(120, rel=0.02)


ENDS = "write the two ends of a link, for example 'gpu0 -> gpu1'"
BAD = {
    "--without|gpu0 -> gpu2": "--without 'gpu0 -> gpu2': ring:4 has no link from gpu0 to gpu2; "
    "the links of gpu0 go to gpu1, gpu3",
    "--without|gpu0 <-> gpu9": "--without 'gpu0 <-> gpu9': ring:4 has no node 'gpu9'; "
    "did you mean gpu3 or gpu2 or gpu1?",
    "--without|gpu0": f"--without 'gpu0': {ENDS}",
    "--without|gpu0 -> gpu1 -> gpu2": f"--without 'gpu0 -> gpu1 -> gpu2': {ENDS}",
    "--slow|gpu0 -> gpu1": "--slow 'gpu0 -> gpu1': write the bandwidth behind the link, "
    "for example 'gpu0 -> gpu1=100Gb/s'",
    "--slow|gpu0 -> gpu1=25GB/s": "--slow gpu0 -> gpu1: gpu0 -> gpu1 has 25 GB/s, "
    "and 25 GB/s is not slower; give a lower bandwidth",
    "--slow|gpu0 -> gpu1=1GB/s|--without|gpu1<->gpu0": "gpu0 -> gpu1 has two faults: without gpu1 <-> gpu0; "
    "gpu0 -> gpu1 at 1 GB/s",
    "--without|gpu0 <-> gpu1|--without|gpu0 <-> gpu3": "without gpu0 <-> gpu1, without gpu0 <-> gpu3: "
    "disconnects gpu0 from gpu1, gpu2, gpu3 on ring:4",
    "--without|gpu0 -> gpu1|--without|gpu0 -> gpu3": "without gpu0 -> gpu1, without gpu0 -> gpu3: "
    "disconnects gpu0 from gpu1, gpu2, gpu3 on ring:4",
}


@pytest.mark.parametrize(("faults", "message"), BAD.items())
@pytest.mark.parametrize("command", [["show"], ["synth", "allgather", "--size", "1MB"]])
def test_bad_faults(capsys: pytest.CaptureFixture[str], command: list[str], faults: str, message: str) -> None:
    assert main([command[0], "ring:4", *command[1:], *faults.split("|")]) == 2
    assert capsys.readouterr().err == f"flowccl: error: {message}\n"


def test_a_bad_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "ring:4", "--slow", "gpu0 -> gpu1=fast"]) == 2
    assert capsys.readouterr().err.startswith("flowccl: error: --slow 'gpu0 -> gpu1=fast'")


def test_faults_need_a_machine(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    out = str(tmp_path / "ag.json")
    assert main(["synth", "ring:4", "allgather", "--size", "1MB", "--out", out, "--without", "gpu0 -> gpu1"]) == 0
    assert "ring:4, without gpu0 -> gpu1" in capsys.readouterr().out
    assert main(["verify", out, "--machine", "ring:4", "--without", "gpu0 -> gpu1"]) == 0
    assert main(["verify", out, "--machine", "ring:4"]) == 2
    capsys.readouterr()
    assert main(["show", out, "--without", "gpu0 -> gpu1"]) == 2
    assert capsys.readouterr().err == f"flowccl: error: --without: {out} is a schedule; faults need a machine\n"
    assert main(["verify", out, "--slow", "gpu0 -> gpu1=1"]) == 2
    assert capsys.readouterr().err == "flowccl: error: --slow: needs --machine, the machine with the fault\n"
    assert main(["export", out, "--to", "msccl", "--out", out + ".xml", "--without", "gpu0 -> gpu1"]) == 2
    assert capsys.readouterr().err == (
        "flowccl: error: --without: a schedule is for one machine; synthesize it for the machine with the fault\n"
    )


def test_every_command_that_takes_a_machine_takes_faults() -> None:
    """Every parser with an argument MACHINE has --without and --slow."""
    todo: list[argparse.ArgumentParser] = [_Parsers().whole]
    found = []
    while todo:
        parser = todo.pop()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                todo += action.choices.values()
            names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
            if {"MACHINE", "MACHINE|FILE"} & set(names):
                found.append(parser.prog)
                assert {"--without", "--slow"} <= set(parser._option_string_actions), parser.prog
    assert {"flowccl synth", "flowccl show", "flowccl advise", "flowccl profile"} <= set(found)


def test_show_and_plot_mark_faults(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    faults = ["--without", "gpu0 -> gpu1", "--slow", "gpu2 <-> gpu3=80Gb/s"]
    assert main(["show", "ring:4", *faults]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fault ")]
    assert rows == [
        "fault        gpu0 -> gpu1: lost, 25 GB/s",
        "fault        gpu2 -> gpu3: slow, 10 GB/s instead of 25 GB/s",
        "fault        gpu3 -> gpu2: slow, 10 GB/s instead of 25 GB/s",
    ]
    assert main(["plot", "ring:4", "--out", "ring.svg", *faults]) == 0
    assert main(["plot", "ring:4", *faults]) == 0
    assert (tmp_path / "ring-4-without-gpu0-gpu1-gpu2-gpu3-at-10-GB-s.png").exists()
    drawing = (tmp_path / "ring.svg").read_text(encoding="utf-8")
    assert "#d62728" in drawing
    assert main(["plot", "ring:4", "--out", "whole.svg"]) == 0
    assert "#d62728" not in (tmp_path / "whole.svg").read_text(encoding="utf-8")


@given(st.data())
def test_faults_by_the_name_of_any_link(data: st.DataObject) -> None:
    whole = machine(data.draw(st.sampled_from(["dgx1", "torus:3x3", "ndv2:2", "dgx_a100:2:all", "mi250:1"])))
    link = data.draw(st.integers(0, len(whole.links) - 1))
    name = whole.link_name(link)
    (fault,) = find_faults(whole, without=[name])
    assert [whole.link_name(k) for k in fault.links] == [name]
    (slow,) = find_faults(whole, slow=[f"{name}=0.5GB/s"])
    assert slow.links == fault.links
    broken = Topology(whole.name, whole.nodes, tuple(k for i, k in enumerate(whole.links) if i != link))
    if len(_components(broken)) > 1:
        with pytest.raises(InputError, match="disconnects"):
            with_faults(whole, without=[name])
    else:
        assert with_faults(whole, without=[name]).links == broken.links
