"""The files that MSCCL++'s NCCL library reads by their names."""

import json
from math import lcm

import pytest

from flowccl.catalog import mscclpp_nccl
from flowccl.catalog.files import chunk_alignment, load_catalog
from flowccl.catalog.mscclpp_nccl import FILES, NamedFile, check_named_files, write_named_files
from flowccl.cli import main
from flowccl.errors import InputError


def test_the_names_are_those_of_the_library():
    """As in src/ext/collectives/algorithm_collection_builder.cc of MSCCL++ 0.9."""
    assert [(file.name, file.ranks, file.ranks_per_host) for file in FILES] == [
        ("allreduce_2nodes_1K_64K.json", 16, 8),
        ("allreduce_2nodes_128K_2M.json", 16, 8),
        ("allreduce_4nodes_1K_64K.json", 32, 8),
        ("allreduce_4nodes_128K_2M.json", 64, 4),
    ]


def test_a_machine_without_a_name_is_refused(built, tmp_path, capsys):
    with pytest.raises(InputError, match="reads plans for 16 ranks with 8 per host, 32 ranks with 8 per host, 64"):
        write_named_files(built, load_catalog(built), tmp_path / "out")
    assert main(["catalog", "export", str(built), "--to", "mscclpp-nccl", "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    assert "the catalog is for 4 with 4" in capsys.readouterr().err


@pytest.fixture
def for_four(built, monkeypatch):
    """The library as if its first name were registered for the machine of the small catalog."""
    rules = [rule for rule in load_catalog(built).rules if rule.collective == "allreduce" and rule.plan is not None]
    file = NamedFile(FILES[0].name, 4, 4, rules[0].bytes.low, rules[0].bytes.high - 1000)
    monkeypatch.setattr(mscclpp_nccl, "FILES", (file, NamedFile("allreduce_other.json", 4, 4, 1, 63_999)))
    return file


def test_files_have_the_sizes_of_their_names_and_are_proved(built, tmp_path, for_four, capsys):
    out = tmp_path / "out"
    assert main(["catalog", "export", str(built), "--to", "mscclpp-nccl", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "allreduce_other.json: not written: no plan serves allreduces of 1 to 63,999 B" in said
    assert "not loaded by MSCCL++'s library, which has no name for them: " in said
    assert "PyTorch's all_reduce is in place: build with --inplace" in said
    assert [path.name for path in (out / "default").iterdir()] == [for_four.name]
    value = json.loads((out / "default" / for_four.name).read_text())
    for gpu in value["gpus"]:  # as MSCCL++'s executor asks of every call (ExecutionPlan::Impl::checkMessageSize)
        for size in (value["min_message_size"], value["max_message_size"]):
            assert size % 16 == 0
            assert (size // 16) % gpu["input_chunks"] == (size // 16) % gpu["output_chunks"] == 0
    assert for_four.low <= value["min_message_size"] <= value["max_message_size"] <= for_four.high
    assert value["name"] == "allreduce_2nodes_1K_64K"
    assert main(["catalog", "check", str(out)]) == 0
    assert "CORRECT" in capsys.readouterr().out


def test_a_plan_for_one_size_is_not_written_for_more(built, tmp_path, for_four, monkeypatch):
    """Its packets could be taken for those of a call with another size."""
    load, sizes = mscclpp_nccl.load_plan_file, []

    def only(folder, plan):
        value = json.loads(load(folder, plan))
        unit = lcm(plan.alignment_bytes, chunk_alignment(value))
        sizes.append((-(-for_four.low // unit) + 1) * unit)
        return json.dumps(value | {"min_message_size": sizes[0], "max_message_size": sizes[0]}).encode()

    monkeypatch.setattr(mscclpp_nccl, "load_plan_file", only)
    done = write_named_files(built, load_catalog(built), tmp_path / "out")
    value = json.loads(done.paths[0].read_text())
    assert value["min_message_size"] == value["max_message_size"] == sizes[0]
    monkeypatch.setattr(mscclpp_nccl, "FILES", (NamedFile(for_four.name, 4, 4, for_four.low, sizes[0] - 1),))
    other = write_named_files(built, load_catalog(built), tmp_path / "other")
    assert other.paths == ()
    assert f"serves {sizes[0]:,} to {sizes[0]:,} B" in other.notes[0]


def test_changed_files_are_found(built, tmp_path, for_four):
    out = tmp_path / "out"
    write_named_files(built, load_catalog(built), out)
    path = out / "default" / for_four.name
    value = json.loads(path.read_text())
    path.write_text(json.dumps(value | {"max_message_size": 1 << 20}))
    assert f"its name says {for_four.low:,} to {for_four.high:,} B" in check_named_files(out)[0]
    path.write_text(json.dumps(value | {"min_message_size": value["min_message_size"] + 16}))
    assert any("which the ends of its sizes are not" in finding for finding in check_named_files(out))
    value["gpus"][0]["threadblocks"][0]["ops"].pop()
    path.write_text(json.dumps(value))
    assert check_named_files(out)
    (out / "default" / "mine.json").write_text("{}")
    assert any("does not read this name" in finding for finding in check_named_files(out))


def test_divided_chunks_count_for_the_sizes_that_a_plan_serves():
    """The executor wants whole aligned chunks of both buffers, and an export may divide a schedule's chunks."""
    gpus = [{"input_chunks": 32, "output_chunks": 32}] * 4
    assert chunk_alignment({"collective": "allreduce", "gpus": gpus}) == 16 * 32
    assert chunk_alignment({"collective": "allgather", "gpus": [{"input_chunks": 3, "output_chunks": 4}] * 4}) == 192
    scatter = {"collective": "reduce_scatter", "gpus": [{"input_chunks": 8, "output_chunks": 2}] * 4}
    assert chunk_alignment(scatter) == 16 * 8


def test_the_alignment_of_a_built_plan_is_that_of_its_file(built):
    catalog = load_catalog(built)
    for plan in catalog.plans:
        value = json.loads((built / plan.file).read_text())
        assert plan.alignment_bytes % chunk_alignment(value) == 0
