"""Damaged catalogs: never a traceback, never a wrong plan."""

import copy
import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.catalog.check import check_catalog
from flowccl.catalog.files import load_catalog, load_plan_file, load_plan_schedule
from flowccl.catalog.model import Call
from flowccl.catalog.selection import Selector
from flowccl.cli import main
from flowccl.errors import InputError

SIZES = (63_999, 64_000, 128_000, 256_000, 300_032, 512_000, 600_000)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "allgather", "allreduce", "[0,9)", "[64000,512001)", "../machine.json", "0" * 64, "x" * 200]),
    st.just([]),
    st.just({}),
)


def places(value, path=()):
    """The paths of all entries of a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in pairs:
        yield (*path, key)
        yield from places(entry, (*path, key))


def at(value, path):
    for key in path:
        value = value[key]
    return value


@st.composite
def damages(draw, value):
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        known = list(places(value))
        *above, key = draw(st.sampled_from(known))
        holder = at(value, above)
        kind = draw(st.sampled_from(["replace", "remove", "copy", "add"]))
        if kind == "remove":
            del holder[key]
        elif kind == "copy":
            holder[key] = copy.deepcopy(at(value, draw(st.sampled_from(known))))
        elif kind == "add" and isinstance(holder, dict):
            holder["more"] = draw(ODD)
        else:
            holder[key] = draw(ODD)
        if not list(places(value)):
            break
    return value


def served(folder):
    """Every plan that the catalog would run, with its call; errors are those that users see."""
    try:
        catalog = load_catalog(folder)
    except InputError:
        return
    for collective in ("allreduce", "allgather"):
        for size in SIZES:
            asked = Call(collective, size, 4, False, fingerprint=catalog.machine.fingerprint)
            choice = Selector(catalog).select(asked)
            if choice.plan is not None:
                try:
                    load_plan_file(folder, choice.plan)
                    yield asked, load_plan_schedule(folder, choice.plan, 4)
                except InputError:
                    continue


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_catalog_never_gives_a_wrong_plan(built, tmp_path, data):
    folder = tmp_path / "plans"
    if not folder.exists():
        shutil.copytree(built, folder)
    value = data.draw(damages(json.loads((built / "catalog.json").read_text())))
    (folder / "catalog.json").write_text(json.dumps(value))
    check_catalog(folder)
    for asked, schedule in served(folder):
        demand = schedule.demand
        assert (demand.collective, demand.num_ranks) == (asked.collective, asked.ranks)
        assert asked.size_bytes % (16 * demand.pieces * demand.num_ranks) == 0


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes(built, tmp_path, data):
    folder = tmp_path / "plans"
    if not folder.exists():
        shutil.copytree(built, folder)
    whole = (built / "catalog.json").read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    damaged = (
        whole[:place] if cut else whole[:place] + data.draw(st.binary(min_size=1, max_size=3)) + whole[place + 1 :]
    )
    (folder / "catalog.json").write_bytes(damaged)
    check_catalog(folder)
    list(served(folder))


@pytest.fixture
def copied(built, tmp_path):
    return shutil.copytree(built, tmp_path / "plans")


def edit(folder, change):
    value = json.loads((folder / "catalog.json").read_text())
    change(value)
    (folder / "catalog.json").write_text(json.dumps(value))


def first_file(folder):
    return folder / load_catalog(folder).plans[0].file


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: first_file(folder).unlink(), "no such file"),
        (lambda folder: first_file(folder).write_text("{}"), "was changed after the build; build the catalog again"),
        (lambda folder: (folder / "machine.json").unlink(), "machine.json: no such file"),
        (lambda folder: (folder / "catalog.json").unlink(), "contains no catalog.json"),
        (lambda folder: edit(folder, lambda v: v.update(version=2)), "written by a newer flowccl"),
        (lambda folder: edit(folder, lambda v: v["plans"].append(v["plans"][0])), "two plans are named"),
        (lambda folder: edit(folder, lambda v: v["plans"][0].update(alignment_bytes=16)), "alignment_bytes is 16"),
        (lambda folder: edit(folder, lambda v: v["plans"][0].update(file="../x")), "must be a path inside the folder"),
        (lambda folder: edit(folder, lambda v: v["rules"][0].update(fingerprint="77")), "is for the machine 77"),
    ],
)
def test_check_names_the_damage(copied, damage, message, capsys):
    damage(copied)
    assert main(["catalog", "check", str(copied)]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert message in said


def test_check_and_select_on_another_machine(built, capsys):
    assert main(["catalog", "check", str(built), "--machine", "ring:5", "--json"]) == 2
    assert "not for ring:5" in json.loads(capsys.readouterr().out)["findings"][0]
    words = ["catalog", "select", str(built), "--collective", "allreduce", "--size", "128KB", "--json"]
    assert main([*words, "--machine", "ring:5"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"] is None


def test_commands_on_a_catalog(built, tmp_path, capsys):
    assert main(["catalog", "check", str(built)]) == 0
    assert main(["catalog", "show", str(built), "--out", str(tmp_path / "times.png")]) == 0
    assert (tmp_path / "times.png").stat().st_size > 1000
    plan = load_catalog(built).plans[0]
    size = str(plan.size_bytes)
    assert main(["catalog", "select", str(built), "--collective", plan.collective, "--size", size, "--json"]) == 0
    value = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert value["plan"] in {None, *(one.name for one in load_catalog(built).plans)}
    assert main(["catalog", "show", str(built), "--collective", "alltoall", "--out", "x.png"]) == 2
    assert "the catalog has allreduce, allgather" in capsys.readouterr().err
    assert main(["catalog", "check", str(tmp_path / "nothing")]) == 2
