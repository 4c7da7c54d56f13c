"""Exact messages for bad input on the command line: they name the mistake and the fix; exit code 2, no traceback."""

import gzip
import json
from pathlib import Path

import pytest

from flowccl.cli import main
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.topology.builders import ring
from tests.cases import send

SYNTH = "synth ring:4 allgather --size 40KB"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Run every test in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a command that exits with code 2 and prints nothing else."""
    try:
        code = main(words)
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("flowccl: error: ")
    return err.removeprefix("flowccl: error: ").removesuffix("\n")


TIME = "argument --time-limit: must be above 0 and at most 1e9 seconds, got"
GAP = "argument --gap: must be a finite number, at least 0 (0.01 is 1 %), got"
NUMBERS = {
    f"{SYNTH} --time-limit inf": f"{TIME} inf",
    f"{SYNTH} --time-limit nan": f"{TIME} nan",
    f"{SYNTH} --time-limit -1": f"{TIME} -1",
    f"{SYNTH} --time-limit 0": f"{TIME} 0",
    f"{SYNTH} --time-limit 1e300": f"{TIME} 1e300",
    f"{SYNTH} --time-limit ten": "argument --time-limit: must be a number, got 'ten'",
    f"{SYNTH} --gap -1": f"{GAP} -1",
    f"{SYNTH} --gap nan": f"{GAP} nan",
    f"{SYNTH} --gap inf": f"{GAP} inf",
    f"{SYNTH} --root -1": "argument --root: must not be negative, got -1",
    f"{SYNTH} --method taccl --routing-limit 0": (
        "argument --routing-limit: must be above 0 and at most 1e9 seconds, got 0"
    ),
}


@pytest.mark.parametrize(("line", "message"), NUMBERS.items(), ids=NUMBERS)
def test_numbers_out_of_range(capsys, line, message):
    assert refused(capsys, *line.split()) == f"{message}\nTry: flowccl synth --help"


def test_the_time_limit_of_compare_is_checked_too(capsys):
    line = "compare ring:4 allgather --time-limit inf"
    assert refused(capsys, *line.split()) == f"{TIME} inf\nTry: flowccl compare --help"


OPTIONS = {
    "--nope": "unknown option --nope before the command; write flowccl COMMAND [OPTIONS]\nTry: flowccl --help",
    "--nope synth": "unknown option --nope before the command; write flowccl COMMAND [OPTIONS]\nTry: flowccl --help",
    f"--size=1MB {SYNTH}": "option --size belongs after its command: flowccl synth ... --size\nTry: flowccl --help",
    f"{SYNTH} --sede 3": "unknown option --sede; did you mean --seed?\nTry: flowccl synth --help",
    f"{SYNTH} --xyzzy": "unknown option --xyzzy\nTry: flowccl synth --help",
    f"{SYNTH} more": "unexpected argument 'more'\nTry: flowccl synth --help",
    "advise ring:4 allgather --size 1GB --link gpu0 -": (
        "unexpected argument '-'; quote a link: --link 'gpu0 -> rail0'\nTry: flowccl advise --help"
    ),
}


@pytest.mark.parametrize(("line", "message"), OPTIONS.items(), ids=OPTIONS)
def test_unknown_options_and_arguments(capsys, line, message):
    assert refused(capsys, *line.split()) == message


VALUES = {
    "synth ring:4 allgather --size -1MB": "size '-1MB': must not be negative",
    "compare ring:4 allgather --sizes 1GB:1KB": (
        "sizes '1GB:1KB': the first size is larger than the last; write 1KB:1GB"
    ),
    "compare ring:4 allgather --sizes 2KB:3KB": (
        "sizes '2KB:3KB': the range contains none of 1, 4, 16, 64, 256 B, KB, MB, GB; write a list: 2KB,3KB"
    ),
    f"{SYNTH} --epochs 3 --no-copy": "--epochs, --no-copy: only for --method milp, lp, astar",
    f"{SYNTH} --sketch x.json": "--sketch: only for --method taccl",
    f"{SYNTH} --method taccl --epochs 3": "--epochs: only for --method milp, lp, astar; taccl has no epochs",
    "synth ring:4 allgather --tenants t.json": (
        "--tenants: the file contains each tenant's collective; leave COLLECTIVE out"
    ),
    "synth ring:4 --tenants t.json --size 1MB": (
        "--tenants: the file contains each tenant's collective; leave --size out"
    ),
}


@pytest.mark.parametrize(("line", "message"), VALUES.items(), ids=VALUES)
def test_values(capsys, line, message):
    assert refused(capsys, *line.split()) == message


def named_machine() -> None:
    """A machine whose GPUs are not called gpu0, gpu1, ..."""
    links = [{"src": "a", "dst": "b", "bandwidth": 25, "both": True}]
    value = {"format": "flowccl-topology", "version": 1, "name": "small", "nodes": ["a", "b"], "links": links}
    Path("named.json").write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.parametrize(
    ("machine", "late", "message"),
    [
        ("named.json", "gpu3=20us", "--late gpu3=20us: small has no GPU 'gpu3'; its GPUs are a, b, or ranks 0 to 1"),
        ("named.json", "2=20us", "--late 2=20us: small has no GPU '2'; its GPUs are a, b, or ranks 0 to 1"),
        ("named.json", "a", "--late a: write GPU=TIME, for example a=20us"),
        (
            "ring:9",
            "gpu9=1us",
            "--late gpu9=1us: ring:9 has no GPU 'gpu9'; its GPUs are gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7, "
            "... (9 in total), or ranks 0 to 8",
        ),
    ],
)
def test_late_names_the_gpus_of_the_machine(capsys, machine, late, message):
    named_machine()
    assert refused(capsys, "synth", machine, "allgather", "--size", "1MB", "--late", late) == message


@pytest.mark.parametrize("method", ["hierarchical", "hierarchical-halves"])
def test_a_machine_with_one_level_is_refused_by_hierarchical_methods(capsys, method):
    """Chunk counts are planned before the first step, so the machine must be checked before that, too."""
    message = refused(capsys, "synth", "torus:4x4", "allreduce", "--size", "1MB", "--method", method)
    assert message == f"method {method} needs several hosts with several GPUs each; torus:4x4 has one level"


def test_an_unknown_method_is_refused_with_the_list_of_methods(capsys):
    message = refused(capsys, *SYNTH.split(), "--method", "quantum")
    assert message.startswith("unknown method 'quantum'; the methods are auto, nvls, aggregation, in-network, ")
    assert "did you mean" not in message


def test_a_misspelled_method_is_refused_with_the_nearest(capsys):
    message = refused(capsys, *SYNTH.split(), "--method", "greeedy")
    assert message.startswith("unknown method 'greeedy'; ")
    assert "greedy" in message


@pytest.mark.parametrize("command", [("show",), ("synth",), ("plot",)])
def test_a_folder_is_no_machine(capsys, folder, command):
    (folder / "cluster").mkdir()
    (folder / "cluster.json").mkdir()
    more = ("allgather", "--size", "1MB") if command == ("synth",) else ()
    for name in ("cluster", "./cluster", "cluster.json"):
        message = refused(capsys, *command, name, *more)
        assert "folder" in message
        assert "cluster" in message


@pytest.mark.parametrize("command", [("show",), ("verify",), ("synth",)])
def test_a_gz_file_that_is_not_compressed_or_damaged(capsys, command):
    """An uncompressed file is read as it is, or refused by name; a damaged one is refused by name."""
    more = ("allgather", "--size", "1MB") if command == ("synth",) else ()
    Path("plain.json.gz").write_text("not gzip", encoding="utf-8")
    Path("cut.json.gz").write_bytes(gzip.compress(b'{"format": "flowccl-topology"}' * 100)[:-20])
    for name in ("plain.json.gz", "cut.json.gz"):
        assert refused(capsys, *command, name, *more).startswith(f"{name}: ")


def test_a_chunk_count_that_takes_longer_than_the_time_limit(capsys, monkeypatch):
    monkeypatch.setenv("FLOWCCL_MEMORY", "1TB")
    assert main(["synth", "dgx1", "allgather", "--size", "1GB", "--chunks", "100000", "--time-limit", "5"]) == 2
    assert capsys.readouterr().err == (
        "flowccl: error: 100000 chunks per block are 5,600,000 deliveries, whose first schedule takes about 112 s; "
        "use fewer chunks, or a time limit above that\n"
    )


def test_a_least_chunk_above_the_block(capsys):
    assert main(["synth", "dgx1", "allgather", "--size", "8KB", "--min-chunk", "2KB"]) == 2
    assert capsys.readouterr().err == (
        "flowccl: error: the smallest block has 1000 bytes, below the least chunk of 2000\n"
    )


SCHEDULE_OPTIONS = "not with a schedule, which has its own size and method"
MENDED = {
    f"{SYNTH} --min-chunk 0": "--min-chunk '0': must be at least 1 byte",
    f"{SYNTH} --buffer-limit -1 --method milp": "--buffer-limit '-1': must not be negative",
    f"{SYNTH} --trade-off none/t.png": "none/t.png: there is no folder none",
    f"{SYNTH} --slow gpu0->gpu1=999": (
        "--slow gpu0 -> gpu1: gpu0 -> gpu1 has 25 GB/s, and 999 GB/s is not slower; give a lower bandwidth"
    ),
    "synth ring:4 none.json --size 1MB": "none.json: no such file",
    "synth ring:4 alltoallv --matrix none.csv": "none.csv: no such file",
    "synth ring:4 alltoallv --matrix folder": "folder: is a folder, not a file",
    "synth empty.json allgather --size 1MB": "empty.json: not JSON: the file is empty",
    "export ag.json --to perfetto --out none/ag.json": "none/ag.json: cannot be written: there is no folder none",
    "export ag.json --to msccl --out a --max-bytes x": (
        "--max-bytes: cannot read 'x'; write for example 64MB, 1KiB or 4096"
    ),
    "compare ring:4 allgather --sizes 1KB --out none/c.png": "none/c.png: there is no folder none",
    "compare ag.json --sizes 1MB": f"--sizes: {SCHEDULE_OPTIONS}",
    "compare ag.json --methods ring": f"--methods: {SCHEDULE_OPTIONS}",
    "catalog show ag.json": "ag.json: is a file, not the folder of a catalog",
}


@pytest.mark.parametrize(("line", "message"), MENDED.items(), ids=MENDED)
def test_the_message_names_the_option_or_the_file(capsys, folder, line, message):
    (folder / "folder").mkdir()
    (folder / "empty.json").touch()
    demand = send((1000, 0, (1,)), gpus=4)
    save_schedule(Schedule.from_transfers(ring(4), demand, [(0, [0], 0)]), folder / "ag.json")
    assert refused(capsys, *line.split()) == message


def test_an_empty_argument_is_refused_since_its_variable_may_not_be_set(capsys):
    message = refused(capsys, *SYNTH.split(), "--out", "")
    assert message == "the argument after --out is empty; is a variable of the shell not set?\nTry: flowccl --help"


def test_too_little_memory_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr("flowccl.topology.files.read_machine", no_memory)
    message = refused(capsys, "show", "ring:4")
    assert message == "not enough memory: Unable to allocate 22.7 TiB; give a smaller size or machine"


def no_memory(*_: object) -> None:
    raise MemoryError("Unable to allocate 22.7 TiB")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (SYNTH, "flowccl: interrupted before a schedule was found\n"),
        ("show ring:4", "flowccl: interrupted\n"),
    ],
)
def test_only_a_search_says_that_no_schedule_was_found(capsys, monkeypatch, line, message):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flowccl.topology.files.read_machine", stopped)
    assert main(line.split()) == 3
    assert capsys.readouterr() == ("", message)


def test_a_comparison_that_is_stopped_before_its_first_row_found_nothing(capsys, monkeypatch):
    monkeypatch.setattr("flowccl.commands.compare.StopSignal.asked", lambda _: True)
    assert main(["compare", "ring:4", "allgather", "--sizes", "1KB", "--methods", "direct", "--json"]) == 3
    assert capsys.readouterr() == ("", "flowccl: error: interrupted before the first size was finished\n")
