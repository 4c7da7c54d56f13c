"""Readers: real traces of gloo, and small logs written as their tools document them."""

import json
from collections import Counter
from pathlib import Path

import pytest

from flowccl.errors import InputError
from flowccl.jobs import read_logs
from flowccl.jobs.names import collective_of
from tests.jobs.samples import write_sample

JOB = Path(__file__).parents[2] / "examples" / "data" / "job"


def calls_of(logs):
    table = logs.calls
    rows = zip(table.names(), table.size_bytes.tolist(), table.group.tolist(), strict=True)
    return Counter((name, size, table.groups[group].ranks) for name, size, group in rows)


def test_a_real_trace_of_gloo_has_every_call_that_the_script_issued():
    """Per rank and step of `train_with_profiler.py`: 1 allreduce, 4 allgathers, 2 reduce_scatters, 1 alltoallv."""
    logs = read_logs([JOB])
    table = logs.calls
    assert (table.duration_ns >= 0).all()
    assert table.sources[0].skipped == {}
    found = calls_of(logs)
    layer = 4 * (128 * 128 + 128)
    assert found["allreduce", layer, tuple(range(8))] == 8 * 4
    for group in ((0, 1, 2, 3), (4, 5, 6, 7)):
        assert found["allgather", layer, group] == 4 * 16
        assert found["reduce_scatter", layer, group] == 4 * 8
        uneven = [count for (name, _, ranks), count in found.items() if (name, ranks) == ("alltoallv", group)]
        assert sum(uneven) == 4 * 4
    sent = {table.split_bytes[split] for split in table.splits.tolist() if split >= 0}
    assert (512 * 1, 512 * 2, 512 * 3, 512 * 4) in sent


def test_nccl_tests(tmp_path):
    logs = read_logs([write_sample("nccl-tests", tmp_path)])
    assert calls_of(logs) == {("allreduce", size << 20, (0, 1, 2, 3)): 2 for size in (1, 2, 4)}
    assert sorted(logs.calls.duration_ns.tolist())[:2] == [26_950, 27_000]


def test_the_log_of_nccl_has_calls_without_times(tmp_path):
    logs = read_logs([write_sample("NCCL log", tmp_path)])
    assert calls_of(logs) == {
        ("allreduce", 4096, (0, 1, 2, 3)): 4,
        ("allgather", 8192, (0, 1, 2, 3)): 4,
        ("reduce_scatter", 8192, (0, 1, 2, 3)): 4,
    }
    assert (logs.calls.duration_ns == -1).all()
    assert any("NCCL chose" in note for note in logs.calls.sources[0].notes)


def test_an_uneven_alltoall_of_torchcomms(tmp_path):
    lines = [
        "V|1|base_timestamp=1790000000.000",
        "new_comm|comm=world|rank=1|world_size=2",
        "C1|sig|all_to_all_v_single|in_splits=3,5|out_splits=4,5|dtype=bf16|async_op=t|comm=world",
        "C1|Q|work_id=1|+1.000000",
        "C1|S|+1.000010",
        "C1|E|+1.000030",
        "nonsense",
    ]
    path = tmp_path / "clog"
    path.write_text("\n".join(lines))
    table = read_logs([path]).calls
    assert table.names() == ["alltoallv"]
    assert table.split_bytes[table.splits[0]] == (6, 10)
    assert (table.size_bytes[0], table.duration_ns[0], table.rank[0]) == (18, 20_000, 1)
    assert sum(table.sources[0].skipped.values()) == 1


def test_csv_without_a_header_and_with_counts(tmp_path):
    path = tmp_path / "calls.csv"
    path.write_text("all_reduce,64MB,8,3,812.5\nreduce-scatter,1MiB,0 8 16 24,1,40\nwalk,1,2,1,1\n")
    logs = read_logs([path])
    assert calls_of(logs) == {
        ("allreduce", 64_000_000, tuple(range(8))): 3,
        ("reduce_scatter", 1 << 20, (0, 8, 16, 24)): 1,
    }
    assert logs.calls.sources[0].skipped == {"unknown collective 'walk'": 1}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("c10d::_allgather_base_", "allgather"),
        ("nccl:all_reduce_coalesced", "allreduce"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all_single", "alltoall"),
        ("AllToAllv", "alltoallv"),
        ("_broadcast_oop", "broadcast"),
        ("nccl:recv", "send"),
        ("wait", None),
        ("", None),
    ],
)
def test_names_of_collectives(text, name):
    assert collective_of(text) == name


def test_a_missing_file_is_an_error_with_its_name(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.json: no such file"):
        read_logs([tmp_path / "nowhere.json"])


def test_communicators_that_are_split_off_have_their_ranks(tmp_path):
    """As ncclCommSplit logs them: no identifier, but the parent and the color."""
    lines = []
    for rank in range(4):
        start, color, key = f"h:{100 + rank}:{100 + rank} [{rank}] NCCL INFO", rank % 2, rank // 2
        device = f"cudaDev {rank} nvmlDev {rank} busId 1b000"
        lines += [
            f"{start} ncclCommInitRank comm 0xa{rank} rank {rank} nranks 4 {device} commId 0xabc - Init COMPLETE",
            f"{start} ncclCommSplit comm 0xb{rank} rank {key} nranks 2 {device} parent 0xa{rank} childCount 1 "
            f"color {color} key {key} - Init COMPLETE",
            f"{start} AllReduce: opCount 0 sendbuff 0x1 recvbuff 0x2 count 1024 datatype 7 op 0 root 0 comm 0xb{rank} "
            "[nranks=2] stream 0x99",
        ]
    (tmp_path / "nccl.log").write_text("\n".join(lines) + "\n")
    logs = read_logs([tmp_path / "nccl.log"])
    assert calls_of(logs) == {("allreduce", 4096, (0, 2)): 2, ("allreduce", 4096, (1, 3)): 2}
    assert logs.notes == ()


def test_gloo_gives_the_element_type_of_a_list_of_tensors(tmp_path):
    """DDP in bfloat16: the operation on a list of tensors has no element type, gloo's event has it."""
    lists = {"Input Dims": [[[1000]], []], "Input type": ["TensorList", ""], "Concrete Inputs": ["", ""]}
    one = {"Input Dims": [[1000]], "Input type": ["c10::BFloat16"]}
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "c10d::allreduce_", "ts": 1.0, "dur": 5.0, "tid": 1, "args": lists},
        {"ph": "X", "cat": "cpu_op", "name": "gloo:all_reduce", "ts": 2.0, "dur": 30.0, "tid": 9, "args": one},
    ]
    config = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]
    info = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": config}
    (tmp_path / "trace0.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": events}))
    logs = read_logs([tmp_path])
    assert calls_of(logs) == {("allreduce", 2000, (0, 1)): 1}
    assert logs.calls.duration_ns.tolist() == [30_000]


def test_a_dump_without_groups_has_the_ranks_that_call(tmp_path):
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "gloo:all_reduce"}
    entry |= {f"{side}_{what}": value for side in ("input", "output") for what, value in (("sizes", [[8]]),)}
    entry |= {"input_dtypes": ["Float"], "output_dtypes": ["Float"]}
    for rank in (0, 1, 2):
        (tmp_path / f"dump_{rank}.json").write_text(json.dumps({"version": "2.10", "entries": [entry]}))
    logs = read_logs([tmp_path])
    assert calls_of(logs) == {("allreduce", 32, (0, 1, 2)): 3}
    assert logs.notes == ("the logs do not say which ranks a group has: those that make calls in it are taken",)


def test_one_bad_folder_of_unknown_files_is_one_note(tmp_path):
    (tmp_path / "calls.csv").write_text("allreduce,1MB,8,1,50\n")
    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text("nothing")
    (note,) = read_logs([tmp_path]).failed
    assert note.startswith("3 files, first ")
