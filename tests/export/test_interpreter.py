"""The interpreter finds every kind of error in each format, and names the place."""

import copy
import json
import re

import pytest

from flowccl.demand.collectives import COLLECTIVES_BY_NAME
from flowccl.errors import InputError
from flowccl.schedule.schedule import Schedule
from flowccl.topology.machines import machine
from tests.export.cases import exchange, findings, kinds, made, plan_value, read, schedule_of

XML = ("msccl", "executor", "rccl")


def pair_schedule(collective: str) -> Schedule:
    """Two GPUs, one chunk in each direction."""
    topology = machine("full:2:latency=0us:bandwidth=25GB/s")
    demand = COLLECTIVES_BY_NAME[collective](2, 2000)
    link = {(one.src, one.dst): k for k, one in enumerate(topology.links)}
    reduces = collective == "reduce_scatter"
    rows = [(c, [link[(1 - c, c) if reduces else (c, 1 - c)]], 0, reduces) for c in range(2)]
    return Schedule.from_transfers(topology, demand, rows)


def change(text: bytes, pattern: str, into: str) -> bytes:
    """Replace the first match; there must be one."""
    result, count = re.subn(pattern, into, text.decode(), count=1, flags=re.DOTALL)
    assert count == 1
    return result.encode()


@pytest.mark.parametrize("target", XML)
class TestXml:
    def test_good_files_pass(self, target: str) -> None:
        assert findings(made(schedule_of("dgx1", "allgather"), target), target) == []
        assert findings(made(schedule_of("dgx1", "allreduce"), target), target) == []

    def test_dropped_dependency(self, target: str) -> None:
        text = made(schedule_of("dgx1", "allgather"), target)
        wrong = change(text, r'(type="s"[^/]*)depid="\d+" deps="\d+"', r'\1depid="-1" deps="-1"')
        found = findings(wrong, target)
        assert {finding.kind for finding in found} == {"race"}
        assert re.search(
            r"gpu \d threadblock \d+ step \d+ \(\w+\) and gpu \d .* both access o\[\d\] of gpu", found[0].message
        )

    def test_missing_hasdep(self, target: str) -> None:
        text = made(schedule_of("dgx1", "allgather"), target)
        found = findings(change(text, 'hasdep="1"', 'hasdep="0"'), target)
        assert found[0].kind == "hasdep"
        assert "does not publish (hasdep=0)" in found[0].message

    def test_swapped_sends(self, target: str) -> None:
        text = made(schedule_of("dgx1", "alltoall"), target)
        wrong = change(
            text,
            r'(s="\d+" type="s" srcbuf="i" )(srcoff="\d+")([^/]*/>\s*<step s="\d+" type="s" srcbuf="i" )(srcoff="\d+")',
            r"\1\4\3\2",
        )
        found = findings(wrong, target)
        assert {finding.kind for finding in found} == {"result"}
        assert re.search(
            r"gpu \d, output chunk \d: contains rank \d's chunk \d, lacks rank \d's chunk \d", str(found[0])
        )

    def test_offset_off_by_one(self, target: str) -> None:
        text = made(schedule_of("dgx1", "allgather"), target)
        assert kinds(change(text, r'(type="r"[^/]*dstoff=)"2"', r'\1"3"'), target) & {"result", "race"}
        assert "bounds" in kinds(change(text, r'(type="r"[^/]*dstoff=)"\d"', r'\1"8"'), target)

    def test_reduction_counted_twice(self, target: str) -> None:
        text = made(pair_schedule("reduce_scatter"), target)
        last = r'(<step s=")(\d)(" type="(?:rrc|re)"[^/]*/>)'
        again = (
            r'\1\2\3\n      <step s="2" type="re" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="1" '
            r'depid="-1" deps="-1" hasdep="0"/>'
        )
        found = findings(change(text, last, again), target)
        assert [str(finding) for finding in found] == ["result: gpu 0, output chunk 0: counts rank 0's chunk 0 2 times"]

    def test_send_without_receive(self, target: str) -> None:
        text = made(schedule_of("dgx1", "allgather"), target)
        wrong = change(text, r'\s*<step [^>]*type="r"[^>]*hasdep="0"/>(\s*</tb>)', r"\1")
        found = findings(wrong, target)
        assert any(f.kind == "pair" and "no receive matches it" in f.message for f in found)
        assert any(f.kind == "result" and "is never written" in f.message for f in found)

    def test_more_in_flight_than_the_fifo_depth(self, target: str) -> None:
        found = findings(all_sends_first("Simple", 3, target), target)
        assert [finding.kind for finding in found] == ["deadlock"]
        assert "gpu 0 threadblock 0 step 2 (s) waits for" in found[0].message
        assert "(the depth of a connection is 2)" in found[0].message
        assert findings(all_sends_first("Simple", 2, target), target) == []
        assert findings(all_sends_first("LL", 3, target), target) == []
        assert kinds(all_sends_first("LL", 9, target), target) == {"deadlock"}

    def test_a_count_larger_than_the_fifo_is_split(self, target: str) -> None:
        """One step of 3 chunks is up to 3 operations of the runtime: both ends must run at the same time."""
        assert kinds(all_sends_first("Simple", 1, target, count=3), target) == {"deadlock"}

    def test_step_over_the_limit(self, target: str) -> None:
        text = made(pair_schedule("allgather"), target).decode()
        step = re.search(r"\s*<step[^>]*cpy[^>]*/>", text)
        assert step is not None
        most = 256 if target == "msccl" else 64
        many = "".join(step[0].replace('s="0"', f's="{k}"') for k in range(most + 1))
        found = findings(text.replace(step[0], many, 1).encode(), target)
        assert {finding.kind for finding in found} == {"limit"}
        assert f"steps per threadblock: {most + 1}, but {target} allows at most {most}" in found[0].message

    def test_input_is_not_changed(self, target: str) -> None:
        text = made(pair_schedule("allgather"), target)
        found = findings(change(text, r'(type="r"[^/]*)dstbuf="o" dstoff="1"', r'\1dstbuf="i" dstoff="0"'), target)
        assert "input" in {finding.kind for finding in found} or "race" in {finding.kind for finding in found}

    def test_two_blocks_share_a_connection(self, target: str) -> None:
        text = made(pair_schedule("allgather"), target)
        block = re.search(r'\s*<tb id="\d" send="1".*?</tb>', text.decode(), re.DOTALL)
        assert block is not None
        extra = re.sub(r'id="\d"', 'id="3"', block[0])
        wrong = text.decode().replace("\n  </gpu>", extra + "\n  </gpu>", 1)
        assert "connection" in kinds(wrong.encode(), target)

    def test_exchange_of_one_chunk_in_both_directions(self, target: str) -> None:
        for inplace in (False, True):
            assert findings(made(exchange(), target, inplace=inplace), target) == []


def all_sends_first(protocol: str, sends: int, target: str, count: int = 1) -> bytes:
    """An allgather of two GPUs whose single threadblock sends everything before it receives anything."""
    chunks = sends * count
    lines = [
        f'<algo name="x" proto="{protocol}" nchannels="1" nchunksperloop="{2 * chunks}" ngpus="2" coll="allgather" '
        'inplace="1" outofplace="0" minBytes="0" maxBytes="0">'
    ]
    for rank in range(2):
        lines += [f'<gpu id="{rank}" i_chunks="0" o_chunks="{2 * chunks}" s_chunks="0">']
        lines += [f'<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">']
        for k in range(2 * sends):
            kind, owner = ("s", rank) if k < sends else ("r", 1 - rank)
            at = f'buf="o" {{}}off="{owner * chunks + k % sends * count}"'
            cells = f"src{at.format('src')} dst{at.format('dst')}"
            lines.append(f'<step s="{k}" type="{kind}" {cells} cnt="{count}" depid="-1" deps="-1" hasdep="0"/>')
        lines += ["</tb>", "</gpu>"]
    return "\n".join([*lines, "</algo>"]).encode()


class TestMscclpp:
    def plan(self, collective: str = "allgather") -> dict:
        return copy.deepcopy(plan_value(schedule_of("dgx1", collective)))

    def found(self, plan: dict) -> list:
        return findings(json.dumps(plan).encode(), "mscclpp")

    def first(self, plan: dict, name: str, number: int = 0) -> tuple[list, int]:
        """Return the list of operations and the index of an operation with that name."""
        places = [
            (block["ops"], k)
            for gpu in plan["gpus"]
            for block in gpu["threadblocks"]
            for k, op in enumerate(block["ops"])
            if op["name"] == name
        ]
        return places[number]

    def test_good_files_pass(self) -> None:
        for collective in ("allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast"):
            assert self.found(self.plan(collective)) == []
        for inplace in (False, True):
            assert findings(made(exchange(), "mscclpp", inplace=inplace), "mscclpp") == []

    def test_dropped_dependency(self) -> None:
        plan = self.plan()
        ops, k = self.first(plan, "sem_acquire")
        ops[k] = {"name": "nop"}
        assert "race" in {finding.kind for finding in self.found(plan)}

    def test_missing_release(self) -> None:
        plan = self.plan()
        ops, k = self.first(plan, "sem_release")
        ops[k] = {"name": "nop"}
        found = self.found(plan)
        assert any(f.kind == "pair" and "(sem_acquire): no send matches it" in f.message for f in found)

    def test_swapped_sends(self) -> None:
        plan = self.plan("alltoall")
        for gpu in plan["gpus"]:
            for block in gpu["threadblocks"]:
                puts = [op for op in block["ops"] if op["name"] == "put" and op["src_buff"][0]["type"] == "i"]
                if len(puts) > 1:
                    puts[0]["src_buff"], puts[1]["src_buff"] = puts[1]["src_buff"], puts[0]["src_buff"]
                    assert {finding.kind for finding in self.found(plan)} == {"result"}
                    return
        raise AssertionError("no two puts in a threadblock")

    def test_offset_off_by_one(self) -> None:
        plan = self.plan()
        ops, k = self.first(plan, "put")
        ops[k]["dst_buff"][0]["index"] += 1
        assert {finding.kind for finding in self.found(plan)} & {"result", "race"}
        ops[k]["dst_buff"][0]["index"] = 8
        assert "bounds" in {finding.kind for finding in self.found(plan)}

    def test_reduction_counted_twice(self) -> None:
        plan = plan_value(pair_schedule("reduce_scatter"))
        ops, k = self.first(plan, "re")
        ops[k]["src_buff"].append(ops[k]["src_buff"][0])
        (finding,) = self.found(plan)
        assert re.fullmatch(r"result: gpu 0, output chunk 0: counts rank [01]'s chunk 0 2 times", str(finding))

    def test_signal_without_wait(self) -> None:
        plan = plan_value(pair_schedule("allgather"))
        block = next(b for b in plan["gpus"][0]["threadblocks"] if b["ops"][0]["name"] == "signal")
        block["ops"] = [op for op in block["ops"] if op["name"] != "wait"]
        found = self.found(plan)
        assert any(f.kind == "pair" and "(signal): no receive matches it" in f.message for f in found)

    def test_cycle_of_waits(self) -> None:
        plan = plan_value(pair_schedule("allgather"))
        for gpu in plan["gpus"]:
            for block in gpu["threadblocks"]:
                if block["ops"][0]["name"] == "signal":
                    block["ops"].append(block["ops"].pop(0))
        found = self.found(plan)
        assert found[0].kind == "deadlock"
        assert "(wait) waits for" in found[0].message

    def test_over_the_limit(self) -> None:
        plan = plan_value(pair_schedule("allgather"))
        plan["gpus"][0]["threadblocks"][0]["ops"] += [{"name": "nop"}] * 64
        assert [finding.kind for finding in self.found(plan)] == ["limit"]
        plan = plan_value(pair_schedule("allgather"))
        plan["gpus"][0]["input_chunks"] = 0
        assert "limit" in {finding.kind for finding in self.found(plan)}

    def test_missing_barrier_of_threads(self) -> None:
        plan = plan_value(pair_schedule("allgather"))
        ops, k = self.first(plan, "put")
        assert ops[k + 1] == {"name": "nop"}
        del ops[k + 1]
        assert {finding.kind for finding in self.found(plan)} == {"sync"}

    def test_pws_on_memory_channels_does_not_signal(self) -> None:
        plan = plan_value(pair_schedule("allgather"))
        ops, k = self.first(plan, "put")
        ops[k]["name"] = "pws"
        del ops[k + 1 : k + 3]
        assert "signal" in {finding.kind for finding in self.found(plan)}

    def test_an_alltoall_between_hosts_is_not_in_place(self) -> None:
        """A copy would overwrite data that a port still reads."""
        with pytest.raises(InputError, match="an alltoall between hosts does not run in place"):
            plan_value(schedule_of("ndv2:2", "alltoall"), inplace=True)


def test_places_are_named() -> None:
    program = read(made(pair_schedule("allgather"), "msccl"), "msccl")
    assert str(program.operations[0]) == "gpu 0 threadblock 0 step 0 (cpy)"
