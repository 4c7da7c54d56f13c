"""Pictures are written, are not empty, and contain the expected labels."""

import re
import sys
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.axes import Axes

from flowccl.demand.collectives import allgather, allreduce, broadcast, reduce_scatter, scatter
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import FileError, InputError
from flowccl.plot.machine import plot_topology
from flowccl.plot.node_positions import position_nodes
from flowccl.plot.timeline import plot_timeline
from flowccl.schedule.schedule import Schedule
from flowccl.topology.machines import machine
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.units import busy_ps
from flowccl.verifier.verify import verify
from tests.strategies import topologies


def ring_schedule(gpus: int, chunks: int = 1) -> Schedule:
    """Allgather on a ring: in step s every rank forwards the block that it received in step s - 1."""
    topology, demand = machine(f"ring:{gpus}"), allgather(gpus, gpus * chunks * 1000, chunks)
    ahead = {link.src: number for number, link in enumerate(topology.links) if link.dst == (link.src + 1) % gpus}
    step_ps = busy_ps(1000, 25.0) + 700_000
    transfers = [
        (((rank - step) % gpus) * chunks + piece, (ahead[rank],), (step * chunks + piece) * step_ps)
        for step in range(gpus - 1)
        for rank in range(gpus)
        for piece in range(chunks)
    ]
    return Schedule.from_transfers(topology, demand, transfers, method="ring")


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.asarray(imread(BytesIO(path.read_bytes()), format="png"))


def text_of(path: Path) -> str:
    """The text of an SVG, which is drawn as shapes but kept in comments."""
    return "\n".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_a_timeline_shows_bars_in_the_colours_of_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ring.png"
    plot_timeline(ring_schedule(4), path, lower_bound_us=2.0)
    image = pixels(path)
    assert image.shape[1] > 1000
    found = {tuple((colour * 255).round().astype(int)) for colour in image[..., :3].reshape(-1, 3)[::7]}
    assert {(31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40)} <= found  # ranks 0 to 3


def test_chunks_of_one_message_are_stacked(tmp_path: Path) -> None:
    """On a line of three, rank 1 forwards the block of rank 0 in one message with its own block."""
    topology = machine("line:3:overhead=2us")
    link = {(k.src, k.dst): place for place, k in enumerate(topology.links)}
    chunks = [Chunk(bytes=100_000, sources=(rank,), destinations=(2,)) for rank in (0, 1)]
    demand = Demand.from_chunks("custom", 3, chunks)
    rows = [(0, [link[0, 1]], 0), (0, [link[1, 2]], 7_000_000), (1, [link[1, 2]], 7_000_000)]
    separate = Schedule.from_transfers(topology, demand, rows)
    schedule = replace(separate, message=np.array([-1, 0, 0], dtype=np.int32))
    assert verify(schedule) == []
    plot_timeline(schedule, tmp_path / "line.png")
    image = (pixels(tmp_path / "line.png")[..., :3] * 255).round().astype(int)
    right = image[:, image.shape[1] * 6 // 10]  # a column of pixels during the message
    blue, orange = (np.flatnonzero((right == colour).all(axis=1)) for colour in ((31, 119, 180), (255, 127, 14)))
    assert len(blue) == pytest.approx(len(orange), abs=2)
    assert len(blue) > 5
    assert blue.max() < orange.min()


def test_a_timeline_has_title_and_labels(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    schedule = ring_schedule(4)
    plot_timeline(schedule, path, lower_bound_us=2.0)
    words = text_of(path)
    assert schedule.finish_us == pytest.approx(2.22)
    for part in (
        "ring:4: allgather, 4 KB, 4 GPUs",
        "finish 2.22 us, lower bound 2 us, gap 11.00%, method ring",
        "gpu0 → gpu1",
        "gpu3 → gpu0",
        "time [us]",
        "source rank of the chunk",
    ):
        assert part in words, words
    assert "gpu1 → gpu0" not in words  # never used


def test_only_the_busiest_links_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "ring.svg"
    plot_timeline(ring_schedule(8), path, max_rows=3)
    words = text_of(path)
    assert "the 3 busiest of 8 used links are shown" in words
    assert words.count("→") == 3


def test_parallel_links_have_different_names(tmp_path: Path) -> None:
    links = tuple(Link(src=0, dst=1, bandwidth_GBps=25.0) for _ in range(2))
    topology = Topology("double", (Node(name="a"), Node(name="b")), links)
    schedule = Schedule.from_transfers(topology, broadcast(2, 10, 2), [(0, (0,), 0), (1, (1,), 0)])
    plot_timeline(schedule, tmp_path / "double.svg")
    words = text_of(tmp_path / "double.svg")
    assert "a → b\n" in words
    assert "a → b (2)\n" in words


@pytest.mark.parametrize(
    ("demand", "words"),
    [
        (broadcast(3, 30, 2), "chunk"),
        (scatter(3, 30), "destination rank of the chunk"),
        (reduce_scatter(3, 30), "destination rank of the chunk"),
        (allreduce(3, 30, 2), "block of the buffer"),
    ],
)
def test_colours_depend_on_the_collective(demand: Schedule, words: str, tmp_path: Path) -> None:
    schedule = Schedule.from_transfers(machine("ring:3"), demand, [(0, (0,), 0), (1, (1,), 0)])
    plot_timeline(schedule, tmp_path / "picture.svg")
    assert words in text_of(tmp_path / "picture.svg").split("\n")


def test_many_bars_and_many_ranks(tmp_path: Path) -> None:
    schedule = ring_schedule(64, 4)
    assert len(schedule) == 64 * 63 * 4
    plot_timeline(schedule, tmp_path / "many.png")
    image = (pixels(tmp_path / "many.png")[..., :3] * 255).astype(np.int64)
    assert len(np.unique(image @ [1, 256, 65536])) > 64


MACHINES = (
    "dgx1",
    "ndv2:2",
    "ndv2:3",
    "dgx2:2",
    "torus:4x4",
    "torus:3x3x3",
    "fat_tree:4",
    "dragonfly:2:2:1",
    "dgx_a100:2:all",
    "rail:4x4",
    "star:5",
)


@pytest.mark.parametrize("name", MACHINES)
def test_nodes_of_a_machine_do_not_overlap(name: str) -> None:
    place = position_nodes(machine(name)).place
    distance = np.hypot(*(place[:, None] - place[None, :]).T) + 9 * np.eye(len(place))
    assert distance.min() > 0.6


@settings(deadline=None, max_examples=60)
@given(topologies(max_gpus=9))
def test_nodes_of_any_machine_do_not_overlap(topology: Topology) -> None:
    place = position_nodes(topology).place
    distance = np.hypot(*(place[:, None] - place[None, :]).T) + 9 * np.eye(len(place))
    assert distance.min() > 0.6


def test_a_torus_is_a_grid_and_hosts_are_separate() -> None:
    place = position_nodes(machine("torus:4x4")).place
    assert len(np.unique(place[:, 0].round(6))) == len(np.unique(place[:, 1].round(6))) == 4
    plan = position_nodes(machine("ndv2:2"))
    assert list(plan.outlines) == ["host0", "host1"]
    assert plan.place[:8, 0].max() < plan.outlines["host0"][:, 0].max() < plan.outlines["host1"][:, 0].min()


def test_a_machine_is_drawn_with_ranks_and_bandwidths(tmp_path: Path) -> None:
    plot_topology(machine("ndv2:2"), tmp_path / "ndv2.png")
    image = pixels(tmp_path / "ndv2.png")
    found = {tuple((colour * 255).round().astype(int)) for colour in image[..., :3].reshape(-1, 3)[::7]}
    assert (47, 75, 124) in found  # GPUs
    plot_topology(machine("ndv2:2"), tmp_path / "ndv2.svg")
    words = text_of(tmp_path / "ndv2.svg").split("\n")
    assert "16 GPUs in 2 hosts, 66 links" in words
    assert {"50 GB/s, 32 links", "25 GB/s, 32 links", "12.5 GB/s, 2 links"} <= set(words)
    assert {str(rank) for rank in range(16)} <= set(words)
    assert {"host0", "host1", "one line for each direction"} <= set(words)


def test_switches_memories_and_limits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    annotate = Axes.annotate
    monkeypatch.setattr(Axes, "annotate", lambda *args, **more: names.append(args[1]) or annotate(*args, **more))
    nodes = (Node(name="a"), Node(name="b"), Node(name="s", kind="switch"), Node(name="m", kind="memory"))
    pairs = [(0, 2, 10.0), (2, 1, 10.0), (2, 3, 5.0), (3, 2, 4.0)]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=GBps) for a, b, GBps in pairs)
    limit = Limit(name="bus", links=(0, 1), bandwidth_GBps=12.0)
    plot_topology(Topology("small", nodes, links, (limit,)), tmp_path / "small.svg")
    words = text_of(tmp_path / "small.svg").split("\n")
    assert "2 GPUs, 1 switch, 1 memory, 4 links, 1 shared limit (not drawn)" in words
    assert names == ["s", "m"]
    assert {"switch", "memory", "10 GB/s, 2 links", "5 GB/s, 1 link", "4 GB/s, 1 link"} <= set(words)


def test_special_characters_in_names_are_drawn_literally(tmp_path: Path) -> None:
    nodes = (Node(name="$a_$", host="$x$"), Node(name="b\u4e2d", host="$x$"), Node(name="${\\\u4e2d", kind="switch"))
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0) for a, b in ((0, 2), (2, 1), (0, 1)))
    topology = Topology("$\\frac", nodes, links)
    plot_topology(topology, tmp_path / "odd.png")
    plot_timeline(Schedule.from_transfers(topology, broadcast(2, 10), [(0, (2,), 0)]), tmp_path / "odd2.png")


def test_a_machine_without_links(tmp_path: Path) -> None:
    plot_topology(Topology("alone", (Node(name="a"),), ()), tmp_path / "alone.png")
    assert pixels(tmp_path / "alone.png")[..., :3].min() < 0.5


def test_suffixes(tmp_path: Path) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "PNG": b"\x89PNG"}
    for suffix, start in starts.items():
        plot_topology(machine("ring:3"), tmp_path / f"ring.{suffix}")
        assert (tmp_path / f"ring.{suffix}").read_bytes().startswith(start)
    for draw in (
        lambda path: plot_topology(machine("ring:3"), path),
        lambda path: plot_timeline(ring_schedule(3), path),
    ):
        with pytest.raises(InputError, match=r"ring\.gif: a picture must end in \.png, \.svg or \.pdf, got '\.gif'"):
            draw("ring.gif")


def test_pictures_are_reproducible(tmp_path: Path) -> None:
    for suffix in ("svg", "pdf", "png"):
        for name in ("one", "two"):
            plot_topology(machine("ring:3"), tmp_path / f"{name}.{suffix}")
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()


def test_an_empty_schedule_has_no_timeline(tmp_path: Path) -> None:
    schedule = Schedule.from_transfers(machine("ring:3"), allgather(3, 3), [])
    with pytest.raises(InputError, match="the schedule has no transfers, so there is no timeline to draw"):
        plot_timeline(schedule, tmp_path / "empty.png")


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        plot_topology(machine("ring:3"), tmp_path / "none" / "ring.png")


def test_without_matplotlib_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InputError) as caught:
        plot_topology(machine("ring:3"), tmp_path / "ring.png")
    assert str(caught.value) == "pictures need matplotlib: pip install flowccl[plot]"


def test_more_transfers_than_pixels_become_mean_colours() -> None:
    """Two colours that alternate faster than pixels mix; a link that is busy half of the time is paler."""
    from flowccl.plot.level_of_detail import row_image

    count = 10_000
    begin = np.arange(count, dtype=np.float64)
    red_blue = np.where((np.arange(count) % 2 == 0)[:, None], (1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 1.0))
    row = np.repeat((0, 1), (count, count))
    image = row_image(
        row,
        np.concatenate((begin, begin)),
        np.concatenate((begin + 1, begin + 0.5)),
        np.concatenate((red_blue, red_blue)),
        np.ones(2 * count),
        3,
        (0.0, float(count)),
        columns=100,
    )
    assert np.allclose(image[0], (0.5, 0.0, 0.5, 1.0))
    assert np.allclose(image[1], (0.5, 0.0, 0.5, 0.6))  # 0.2 + 0.8 x 0.5
    assert not image[2].any()


def test_a_lone_short_bar_stays_visible() -> None:
    from flowccl.plot.level_of_detail import row_image

    one = np.array([50.0]), np.array([50.001])
    image = row_image(np.array([0]), *one, np.array([[0.0, 1.0, 0.0, 1.0]]), np.ones(1), 1, (0.0, 100.0), columns=100)
    assert image[0, 50, 3] > 0.2
    assert np.count_nonzero(image[0, :, 3]) == 1


def test_a_large_timeline_says_that_colours_are_means_and_what_they_stand_for(tmp_path: Path) -> None:
    path = tmp_path / "large.svg"
    plot_timeline(ring_schedule(64, 6), path)
    words = text_of(path)
    assert "more transfers than pixels: mean colours" in words
    assert re.search(r"source rank of the chunk: 64 colours, labelled in steps of \d", words)
    assert path.stat().st_size < 3_000_000
