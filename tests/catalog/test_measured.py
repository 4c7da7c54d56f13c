"""Measured times in a catalog: recorded, shown, and refused where they make no sense."""

import json
import shutil
from dataclasses import replace

import pytest

from flowccl.catalog.check import check_catalog
from flowccl.catalog.files import load_catalog
from flowccl.cli import main


@pytest.fixture
def copied(built, tmp_path):
    return shutil.copytree(built, tmp_path / "plans")


def test_measured_times_are_recorded_and_shown(copied, capsys):
    before = load_catalog(copied)
    plan = before.plans[0]
    words = ["catalog", "record", str(copied), "--measured", f"{plan.name}={2 * plan.program_us}", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {plan.name: 2 * plan.program_us}
    after = load_catalog(copied)
    assert after.plan(plan.name).measured_us == 2 * plan.program_us
    assert replace(after, plans=before.plans) == before
    assert check_catalog(copied).findings == ()
    assert main(["catalog", "show", str(copied)]) == 0
    assert "(100.00 % above predicted)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing=3", "there is no plan 'nothing' in the catalog"),
        ("14.2", "--measured '14.2': write a plan and its time in microseconds, as in NAME=14.2"),
        ("{}=soon", "write a plan and its time in microseconds"),
        ("{}=-1", "a measured time must be above 0 us, got -1"),
        ("{}=nan", "a measured time must be above 0 us, got nan"),
    ],
)
def test_bad_times_are_refused_and_nothing_is_written(copied, text, message, capsys):
    whole = (copied / "catalog.json").read_bytes()
    name = load_catalog(copied).plans[0].name
    assert main(["catalog", "record", str(copied), "--measured", text.format(name)]) == 2
    assert message in capsys.readouterr().err
    assert (copied / "catalog.json").read_bytes() == whole
