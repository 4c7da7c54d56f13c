import json

import pytest

from flowccl.analysis.advise import advise, describe
from flowccl.cli import main
from flowccl.topology.machines import machine
from flowccl.topology.topology import Limit


def test_the_nics_bind_an_allgather_of_four_hosts() -> None:
    advice = advise(
        machine("dgx_a100:4"), "allgather", 10**9, link="gpu0->rail0", bandwidths_GBps=(25.0, 26.0, 50.0, 1000.0)
    )
    first, second = advice.bottlenecks
    assert (first.name, first.links, second.name) == ("gpu0 -> rail0", 64, "gpu0 -> nvswitch0")
    assert first.use == pytest.approx(1)
    assert second.use < 1
    assert first.saved_us_per_GBps == pytest.approx(3750 / 25, rel=0.01)
    assert advice.proved
    times = [us for _, us in advice.sweep]
    assert times[:2] == pytest.approx([3750, 3750 * 25 / 26])
    assert times == sorted(times, reverse=True)  # at 1000 GB/s the NVLinks bind
    assert "gpu0 -> rail0" in describe(advice)


def test_two_kinds_that_bind_together_save_only_what_each_saves_alone() -> None:
    advice = advise(machine("dgx_a100:2"), "allgather", 16 * 10**9)
    seconds = 15 / 325
    for b in advice.bottlenecks:  # both are saturated
        assert b.use == pytest.approx(1)
        assert b.saved_us_per_GBps == pytest.approx(seconds / 325 * 1e6, rel=0.01)


def test_limits_are_bottlenecks_too() -> None:
    from dataclasses import replace

    ring = machine("ring:3:bandwidth=10GB/s")
    limited = replace(ring, limits=(Limit(name="bus", links=tuple(range(6)), bandwidth_GBps=12.0),))
    advice = advise(limited, "allgather", 3 * 10**9)
    assert advice.bottlenecks[0].name == "limit bus"
    assert advice.optimum_us == pytest.approx(6 / 12 * 1e6)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", "ring:4", "broadcast", "--size", "1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["optimum_us"] == pytest.approx(1e6 / 50)
    assert main(["advise", "ring:4", "allgather", "--size", "1GB"]) == 0
    assert "equivalent links" in capsys.readouterr().out
    assert main(["advise", "ring:4", "allgather", "--size", "1GB", "--link", "gpu0 -> gpu1"]) == 2


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ("gpu0", "--link 'gpu0': write the two ends of a link, for example 'gpu0 -> gpu1'"),
        (
            "gpu0 -> gpu2",
            "--link 'gpu0 -> gpu2': ring:4 has no link from gpu0 to gpu2; the links of gpu0 go to gpu1, gpu3",
        ),
        ("gpu0->gppu1", "--link 'gpu0->gppu1': ring:4 has no node 'gppu1'; did you mean gpu1 or gpu3 or gpu2?"),
        ("gpu0 -> rail0", "--link 'gpu0 -> rail0': ring:4 has no node 'rail0'; its nodes are gpu0, gpu1, gpu2, gpu3"),
    ],
)
def test_an_unknown_link_is_refused_with_the_nearest_names(
    capsys: pytest.CaptureFixture[str], link: str, message: str
) -> None:
    command = ["advise", "ring:4", "allgather", "--size", "1GB", "--link", link, "--bandwidths", "1"]
    assert main(command) == 2
    assert capsys.readouterr() == ("", f"flowccl: error: {message}\n")


@pytest.mark.parametrize("link", ["gpu0->gpu1", "gpu0 -> gpu1", " gpu0  ->gpu1 "])
def test_spaces_in_the_name_of_a_link_do_not_matter(link: str) -> None:
    advice = advise(machine("ring:4"), "allgather", 10**9, link=link, bandwidths_GBps=(25.0,))
    assert advice.sweep == ((25.0, pytest.approx(advice.optimum_us)),)
