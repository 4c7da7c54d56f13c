import importlib.util
import json
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from flowccl import machine
from flowccl.catalog.build import build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.files import load_catalog
from flowccl.catalog.library import library_choice, shape_of
from flowccl.catalog.model import Call
from flowccl.catalog.runtime_files import ncclx_tuner, tuner_csv, write_runtime_files
from flowccl.catalog.selection import Selector
from flowccl.cli import main
from flowccl.errors import InputError
from flowccl.export import check
from flowccl.runtimes.profiles import PROFILES
from tests.catalog.cases import OPTIONS


def loaded(path):
    spec = importlib.util.spec_from_file_location("flowccl_plans", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_chooses_as_the_catalog_does(built, tmp_path, capsys):
    assert main(["catalog", "export", str(built), "--out", str(tmp_path / "out")]) == 0
    module = loaded(tmp_path / "out" / "flowccl_plans.py")
    catalog = load_catalog(built)
    selector = Selector(catalog)
    names = {plan.name: json.loads((built / plan.file).read_text())["name"] for plan in catalog.plans}
    assert len(set(names.values())) == len(names)
    for size in [*range(63_936, 70_000, 16), *range(64_000, 520_000, 4_000), 511_999, 512_000, 512_064]:
        plan = selector.select(Call("allreduce", size, 4, False)).plan
        expected = None if plan is None else names[plan.name]
        assert module.choose(module.TABLE, "allreduce", size, 4) == expected
    assert module.choose(module.TABLE, "allreduce", 128_000, 8) is None


def test_the_module_registers_every_plan(built, tmp_path, monkeypatch):
    write_runtime_files(built, load_catalog(built), tmp_path / "out")
    added, selectors = [], []

    class Algorithm:
        Constraint = staticmethod(lambda ranks, per_host: (ranks, per_host))

        def __init__(self, id, execution_plan, constraint):
            self.name, self.plan, self.constraint = id, execution_plan, constraint

    builder = SimpleNamespace(add_algorithm_builder=added.append, set_algorithm_selector=selectors.append)
    fake = SimpleNamespace(
        ext=SimpleNamespace(AlgorithmCollectionBuilder=lambda: builder),
        Algorithm=Algorithm,
        ExecutionPlan=lambda path, rank: (path, rank),
    )
    monkeypatch.setitem(sys.modules, "mscclpp", fake)
    monkeypatch.setenv("RANK", "3")
    module = loaded(tmp_path / "out" / "flowccl_plans.py")
    module.register()
    assert len(added) == len(load_catalog(built).plans)
    for one in added:
        assert one.constraint == (4, 4)
        assert one.plan[1] == 3
        assert check(one.plan[0], "mscclpp")[1] == []
    row = next((row for row in module.TABLE if row["collective"] == "allgather"), None)
    if row is not None:  # MSCCL++ counts the bytes of one rank for allgather
        size = -(-row["low"] // row["alignment"]) * row["alignment"]
        request = SimpleNamespace(collective="allgather", message_size=size // 4, world_size=4)
        assert selectors[0]({"allgather": {row["name"]: "it"}}, request) == "it"


def test_xml_runtimes_get_a_folder_of_xml_only(tmp_path):
    options = replace(OPTIONS, collectives=("allgather",), high_bytes=64_000, runtime=PROFILES["executor"])
    catalog = build_catalog(machine("ring:4"), tmp_path / "plans", options, TaskEngine(jobs=1)).catalog
    paths = write_runtime_files(tmp_path / "plans", catalog, tmp_path / "out")
    names = {path.name for path in (tmp_path / "out" / "plans").iterdir()}
    assert len(paths) == len(names) + 2
    assert all(name.endswith(".xml") for name in names)


def test_the_tuner_table_covers_the_fallback_ranges(built):
    catalog = load_catalog(built)
    shape = shape_of(machine("ring:4"))
    whole = replace(catalog, rules=tuple(replace(rule, plan=None) for rule in catalog.rules), plans=())
    rows = [line.split(",") for line in tuner_csv(whole, shape).splitlines()]
    for name in ("allreduce", "allgather"):
        own = [row for row in rows if row[0] == name]
        assert (int(own[0][1]), int(own[-1][2])) == (64_000, 512_000)
        assert all(int(a[2]) + 1 == int(b[1]) for a, b in pairwise(own))
        first = library_choice(shape, name, 64_000)
        assert own[0][3:] == [first.algorithm, first.protocol, "-1", "1", "4"]
    rules = ncclx_tuner(whole, shape)["rules"]
    assert len(rules) == len(rows)
    first = rules[0]
    assert first["filter"] == {
        "collective": rows[0][0],
        "bytesPerRank": f"[16000,{int(rows[0][2]) // 4}]",
        "nNodes": 1,
        "nLocalRanks": 4,
    }
    assert first["config"] == {"algorithm": rows[0][3], "protocol": rows[0][4]}


def test_bad_input(built, tmp_path):
    catalog = load_catalog(built)
    with pytest.raises(InputError, match="must be a new or an empty folder"):
        write_runtime_files(built, catalog, built)
    with pytest.raises(InputError, match="a catalog for ideal has no files for a runtime"):
        write_runtime_files(built, replace(catalog, runtime="ideal"), tmp_path / "out")
    copied = shutil.copytree(built, tmp_path / "copied")
    (copied / catalog.plans[0].file).write_text("{}")
    with pytest.raises(InputError, match="was changed after the build"):
        write_runtime_files(copied, catalog, tmp_path / "out")
    assert not (tmp_path / "out").exists()
