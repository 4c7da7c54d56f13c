"""Tables and pictures in notebooks: valid, escaped, small."""

import re
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from xml.etree import ElementTree

import pytest

from flowccl import Topology, machine, synthesize
from flowccl.topology.topology import Link, Node
from tests.plot.test_plot import ring_schedule


def checked(html: str) -> str:
    """The text of the HTML, after a check that it is well formed."""
    closed = re.sub(r"<(br|img)([^>]*)>", r"<\1\2/>", html)
    return "".join(ElementTree.fromstring(closed).itertext())


def picture(html: str) -> tuple[int, int]:
    """Width and height of the picture in HTML, read by another reader of PNG."""
    from matplotlib.image import imread

    data = re.search(r"base64,([^\"]+)", html)[1]
    height, width, _ = imread(BytesIO(b64decode(data)), format="png").shape
    return width, height


def test_a_schedule_shows_its_facts_and_its_timeline() -> None:
    html = ring_schedule(4)._repr_html_()
    assert "ring:4, 4 GPUs" in checked(html)
    assert "4 used links, 0 to 2.22 us" in checked(html)
    assert picture(html) == (640, 24)


def test_a_large_schedule_stays_small() -> None:
    html = ring_schedule(64, 4)._repr_html_()
    assert "40 of 64 used links" in checked(html)
    assert len(html) < 200_000


def test_a_result_shows_the_gap() -> None:
    result = synthesize(machine("ring:4"), "allgather", 1_000_000, time_limit_s=1)
    text = checked(result._repr_html_())
    assert "lower bound" in text
    assert result.bound.witness in text


@pytest.mark.parametrize("name", ["ring:4", "dgx_h100:2", "ndv2:2", "full:64", "fat_tree:4"])
def test_a_machine_shows_its_nodes(name: str) -> None:
    topology = machine(name)
    html = topology._repr_html_()
    assert html.count("<circle") == len(topology.nodes)
    assert f"links{len(topology.links)}" in checked(html)
    assert len(html) < 300_000


def test_names_are_escaped_and_odd_things_are_shown() -> None:
    strange = Topology("<b>", (Node(name="<&>"), Node(name="b")), (Link(src=0, dst=1, bandwidth_GBps=1.0),))
    assert "<b>" in checked(strange._repr_html_())
    assert "not given" in checked(Topology("one", (Node(name="a"),), ())._repr_html_())
    ring = ring_schedule(4)
    none = {name: getattr(ring, name)[:0] for name in ("chunk", "route", "start_ps", "reduce")}
    assert "no transfers" in checked(replace(ring, **none)._repr_html_())
