"""Chakra traces: their contents, their proof, and the findings when they are damaged.

Two kinds of damage are impossible here: nodes have no flag to publish their completion (hasdep), and the simulator does
not limit FIFOs or steps. The tests use a cycle of waiting nodes and a repeated tag instead.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import FileError
from flowccl.export import ExportOptions, check, export, make, parse
from flowccl.export.formats.protobuf import (
    bytes_field,
    delimited,
    number_field,
    read_delimited,
    read_fields,
    read_numbers,
    varint,
)
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding
from flowccl.run.replay import replay
from flowccl.schedule.schedule import Schedule
from flowccl.topology.machines import machine
from tests.export.cases import random_schedule, schedule_of
from tests.export.test_interpreter import pair_schedule

COMP, SEND, RECV = 4, 5, 6
Fields = list[tuple[int, int | bytes]]


def encode(fields: Fields) -> bytes:
    return b"".join(number_field(f, v) if isinstance(v, int) else bytes_field(f, v) for f, v in fields)


def get(node: Fields, name: str) -> int:
    """Return an attribute of a node."""
    for attribute in (dict(read_fields(value)) for field, value in node if field == 10 and isinstance(value, bytes)):
        if attribute[1] == name.encode():
            value = attribute.get(7, attribute.get(9))
            assert isinstance(value, int)
            return value
    return -1


def put(node: Fields, name: str, value: int) -> None:
    for place, (field, content) in enumerate(node):
        if field == 10 and isinstance(content, bytes) and dict(read_fields(content))[1] == name.encode():
            kind = 9 if name == "comm_size" else 7
            node[place] = (10, bytes_field(1, name.encode()) + number_field(kind, value))
            return
    raise AssertionError(name)


def kind(node: Fields) -> int:
    return int(dict(node)[3])


def deps(node: Fields) -> list[int]:
    return [number for field, value in node if field == 5 for number in read_numbers(value)]


def damaged(schedule: Schedule, damage: Callable[[list[list[Fields]]], None]) -> list[Finding]:
    """Return the findings after a damage to the nodes of all ranks."""
    heads, nodes = [], []
    for trace in make(schedule, "chakra", ExportOptions()):
        head, *rest = read_delimited(trace)
        heads.append(head)
        nodes.append([read_fields(message) for message in rest])
    damage(nodes)
    made = [
        b"".join(delimited(m) for m in (h, *(encode(node) for node in own)))
        for h, own in zip(heads, nodes, strict=True)
    ]
    return interpret(parse(made, "chakra", "x"))


def first(nodes: list[list[Fields]], what: int, test: Callable[[Fields], bool] = lambda _: True) -> tuple[int, int]:
    return next((r, k) for r, own in enumerate(nodes) for k, n in enumerate(own) if kind(n) == what and test(n))


@pytest.mark.parametrize("name", ["dgx1", "ndv2:2"])
@pytest.mark.parametrize(
    "collective", ["allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast", "reduce", "gather", "scatter"]
)
def test_traces_are_proved_and_lose_nothing(name: str, collective: str) -> None:
    schedule = schedule_of(name, collective)
    program = parse(make(schedule, "chakra", ExportOptions()), "chakra", "x")
    assert program.collective == collective
    assert interpret(program) == []
    assert replay(program, seed=1) == []
    assert estimate_ps(program, machine(name), 1_000_000) == pytest.approx(schedule.finish_ps, rel=0.001)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dgx2:2", "mi250:2", "dgx_a100:2", "torus:4x4"])
@pytest.mark.parametrize("collective", ["allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast", "reduce"])
def test_traces_of_more_machines_are_proved(name: str, collective: str) -> None:
    program = parse(make(schedule_of(name, collective), "chakra", ExportOptions()), "chakra", "x")
    assert replay(program) == []


def random_traces(seeds: range) -> None:
    for seed in seeds:
        schedule, root = random_schedule(seed)
        program = parse(make(schedule, "chakra", ExportOptions()), "chakra", "x")
        assert program.root == root
        assert interpret(program) == []
        assert replay(program, seed=seed) == []


def test_no_false_positive_on_random_schedules() -> None:
    random_traces(range(3000, 3012))


@pytest.mark.slow
def test_no_false_positive_on_100_random_schedules() -> None:
    random_traces(range(100))


class TestDamage:
    def test_dropped_dependency(self) -> None:
        def drop(nodes: list[list[Fields]]) -> None:
            rank, k = first(nodes, SEND, lambda node: bool(deps(node)))
            nodes[rank][k] = [(field, value) for field, value in nodes[rank][k] if field != 5]

        found = damaged(schedule_of("dgx1", "allgather"), drop)
        assert {finding.kind for finding in found} == {"race"}
        assert re.search(r"gpu (\d) node \d+ .* and gpu \1 node \d+ .* both access s\[\d\] of gpu", found[0].message)

    def test_swapped_sends(self) -> None:
        def swap(nodes: list[list[Fields]]) -> None:
            for own in nodes:
                for a in own:
                    for b in own:
                        same = kind(a) == kind(b) == SEND and get(a, "comm_dst") == get(b, "comm_dst")
                        if same and a is not b:
                            tags = get(a, "comm_tag"), get(b, "comm_tag")
                            put(a, "comm_tag", tags[1])
                            put(b, "comm_tag", tags[0])
                            return

        found = damaged(schedule_of("dgx1", "alltoall"), swap)
        assert {finding.kind for finding in found} == {"result"}
        assert re.search(
            r"gpu \d, output chunk \d: contains rank \d's chunk \d, lacks rank \d's chunk \d", str(found[0])
        )

    def test_off_by_one(self) -> None:
        def size(nodes: list[list[Fields]]) -> None:
            rank, k = first(nodes, SEND)
            put(nodes[rank][k], "comm_size", get(nodes[rank][k], "comm_size") + 1)

        def chunk(nodes: list[list[Fields]]) -> None:
            rank, k = first(nodes, RECV)
            put(nodes[rank][k], "flowccl_chunk", (get(nodes[rank][k], "flowccl_chunk") + 1) % 8)

        assert "pair" in {finding.kind for finding in damaged(schedule_of("dgx1", "allgather"), size)}
        assert {f.kind for f in damaged(schedule_of("dgx1", "allgather"), chunk)} & {"race", "result"}

    def test_reduction_counted_twice(self) -> None:
        def again(nodes: list[list[Fields]]) -> None:
            rank, k = first(nodes, COMP)
            more = [(1, len(nodes[rank])), *nodes[rank][k][1:], (5, varint(k))]
            nodes[rank].append(more)

        found = damaged(pair_schedule("reduce_scatter"), again)
        assert [str(finding) for finding in found] == ["result: gpu 0, output chunk 0: counts rank 1's chunk 0 2 times"]

    def test_send_without_receive(self) -> None:
        def remove(nodes: list[list[Fields]]) -> None:
            needed = {number for node in nodes[0] for number in deps(node)}
            k = next(k for k, node in enumerate(nodes[0]) if kind(node) == RECV and dict(node)[1] not in needed)
            del nodes[0][k]

        found = damaged(schedule_of("dgx1", "allgather"), remove)
        assert any(f.kind == "pair" and "(send): no receive matches it" in f.message for f in found)
        assert any(f.kind == "result" for f in found) or any(f.kind == "garbage" for f in found)

    def test_cycle_of_waits(self) -> None:
        def add_cycle(nodes: list[list[Fields]]) -> None:
            for own in nodes:
                receive = next(k for k, node in enumerate(own) if kind(node) == RECV)
                send = next(k for k, node in enumerate(own) if kind(node) == SEND)
                own[send].append((5, varint(receive)))

        found = damaged(pair_schedule("allgather"), add_cycle)
        assert found[0].kind == "deadlock"
        assert "gpu 0 node 0 (send) waits for gpu 0 node 1 (receive) waits for gpu 1 node 0 (send)" in found[0].message

    def test_a_tag_for_two_messages(self) -> None:
        def same(nodes: list[list[Fields]]) -> None:
            for own in nodes:
                for node in own:
                    if kind(node) in (SEND, RECV):
                        put(node, "comm_tag", 0)

        found = damaged(schedule_of("dgx1", "alltoall"), same)
        assert "tag" in {finding.kind for finding in found}
        assert re.search(
            r"tag: gpu \d to gpu \d: \d nodes send 125000 bytes with tag 0; tags must differ", str(found[0])
        )

    def test_a_node_that_does_not_exist(self) -> None:
        found = damaged(pair_schedule("allgather"), lambda nodes: nodes[0][0].append((5, varint(99))))
        assert "dependency: gpu 0 node 0: waits for node 99, which does not exist" in [str(f) for f in found]


def test_messages_match(tmp_path: Path) -> None:
    schedule = schedule_of("dgx1", "allreduce")
    paths = export(schedule, "chakra", tmp_path / "ar")
    assert [path.name for path in paths] == [f"ar.{rank}.et" for rank in range(8)]
    ends: dict[int, set[tuple[int, ...]]] = {SEND: set(), RECV: set()}
    reductions = 0
    for path in paths:
        head, *messages = read_delimited(path.read_bytes())
        assert read_fields(head)[0] == (1, b"0.0.4")
        for number, node in enumerate(read_fields(message) for message in messages):
            assert node[0] == (1, number)
            if kind(node) in ends:
                key = tuple(get(node, name) for name in ("comm_src", "comm_dst", "comm_tag", "comm_size"))
                assert key not in ends[kind(node)]
                ends[kind(node)].add(key)
            reductions += kind(node) == COMP and get(node, "flowccl_adds") >= 0
    assert ends[SEND] == ends[RECV]
    assert len(ends[SEND]) == len(schedule)
    assert reductions == int(schedule.reduce.sum())


@pytest.mark.parametrize("collective", ["alltoall", "allreduce"])
def test_sends_of_a_link_keep_their_order(collective: str) -> None:
    """A send starts only after everything that the send before it on the link waited for, and one COMP node later."""
    schedule = schedule_of("dgx1", collective, 2)
    links = {(link.src, link.dst) for link in schedule.topology.links}
    starts: dict[tuple[int, int], list[int]] = {pair: [] for pair in links}
    for i in schedule.start_ps.argsort(kind="stable").tolist():
        link = schedule.topology.links[schedule.routes.links(int(schedule.route[i]))[0]]
        starts[link.src, link.dst].append(int(schedule.chunk[i]))
    for trace in make(schedule, "chakra", ExportOptions()):
        nodes = [read_fields(message) for message in list(read_delimited(trace))[1:]]
        after = [[n for f, v in node if f == 5 for n in read_numbers(v)] for node in nodes]
        sent: dict[tuple[int, int], list[int]] = {}
        for n, node in enumerate(nodes):
            if kind(node) == SEND:
                sent.setdefault((get(node, "comm_src"), get(node, "comm_dst")), []).append(n)
        for pair, sends in sent.items():
            assert [get(nodes[n], "flowccl_chunk") for n in sends] == starts[pair]
            for before, now in pairwise(sends):
                gates = [n for n in after[now] if kind(nodes[n]) == COMP and after[n] == after[before]]
                assert gates


def test_all_traces_are_written_or_none(tmp_path: Path) -> None:
    (tmp_path / "ar.5.et").mkdir()
    with pytest.raises(FileError, match=r"ar\.5\.et: is a folder"):
        export(schedule_of("dgx1", "allreduce"), "chakra", tmp_path / "ar")
    assert [path.name for path in tmp_path.iterdir()] == ["ar.5.et"]


def test_traces_without_a_collective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For a custom demand, or traces of other tools, only matching and deadlocks are checked."""
    demand = Demand.from_chunks("custom", 2, [Chunk(bytes=8, sources=(0,), destinations=(1,))])
    export(Schedule.from_transfers(machine("full:2"), demand, [(0, [0], 0)]), "chakra", tmp_path / "own")
    assert main(["check-export", str(tmp_path / "own"), "--to", "chakra"]) == 0
    assert (
        "sends match receives, no deadlock; the file does not say which collective it computes"
        in capsys.readouterr().out
    )
    assert main(["check-export", str(tmp_path / "own"), "--to", "chakra", "--numbers"]) == 2
    assert "does not say which collective it computes: leave --numbers out" in capsys.readouterr().err


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export(schedule_of("dgx1", "reduce"), "chakra", tmp_path / "r")
    for name in ("r", "r.0.et"):
        assert main(["check-export", str(tmp_path / name), "--to", "chakra", "--numbers"]) == 0
        assert "PROVED: reduce on 8 GPUs, 1 chunk" in capsys.readouterr().out
    (tmp_path / "r.7.et").unlink()
    assert main(["check-export", str(tmp_path / "r"), "--to", "chakra"]) == 2
    assert "there are traces of 7 gpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "x.0.et: not a Chakra trace: it is empty"),
        (
            b"hello",
            "x.0.et: not a Chakra trace: a message of 104 bytes begins at byte 1, but the file has only 5 bytes",
        ),
        (b"\xff" * 20, "x.0.et: not a Chakra trace: the number at byte 0 does not end"),
        (delimited(b"\x0b"), "x.0.et: not a Chakra trace: field 1 has the unknown wire type 3"),
        (
            delimited(bytes_field(1, b"0")) + delimited(number_field(3, 7)),
            "gpu 0 node 0: node type 7 is not supported",
        ),
        (
            delimited(bytes_field(1, b"0")) + delimited(number_field(3, 5)),
            "gpu 0 node 0: attribute comm_dst is missing",
        ),
    ],
)
def test_bad_traces(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "x.0.et").write_bytes(data)
    with pytest.raises(FileError) as error:
        check(tmp_path / "x", "chakra")
    assert words in str(error.value)


def test_missing_and_huge_traces(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"x\.0\.et: no such file"):
        check(tmp_path / "x", "chakra")
    with (tmp_path / "x.0.et").open("wb") as file:
        file.truncate(10**9)
    with pytest.raises(FileError, match=r"x\.0\.et: larger than 256 MB, the size limit"):
        check(tmp_path / "x", "chakra")
