"""Reports: their data adds up, their text says what is left out, and bad input is refused."""

import os
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from flowccl.catalog.build import build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.files import load_catalog
from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import InputError
from flowccl.explain import explain
from flowccl.lowered import lower_for
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.report import columns as report_columns_module
from flowccl.report import report_html, save_report
from flowccl.report import runtimes as report_runtimes
from flowccl.report.catalog_page import catalog_html
from flowccl.report.colourings import colourings
from flowccl.report.columns import completed, report_columns
from flowccl.report.rows import link_times
from flowccl.report.runtimes import runtime_rows
from flowccl.report.tables import runtimes_section
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.files import save_schedule
from flowccl.schedule.generation.carrying import carried_out
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.files import save_topology
from flowccl.topology.machines import machine
from flowccl.units import format_us
from tests.catalog.cases import OPTIONS
from tests.schedule.test_transform import spread_out

pytest.importorskip("bokeh")


def made(name: str, what: str, size: int, method: str = "ring", chunks: int = 1) -> Schedule:
    topology = machine(name)
    problem = Problem(topology, collective(what, topology.num_gpus, size, chunks))
    return next(load_method(method)(problem, SearchContext.with_limit(60.0)))


@pytest.fixture(scope="module")
def ring() -> Schedule:
    return made("ring:4", "allgather", 40_000)


def test_a_report_is_one_file_without_outside_references(ring, tmp_path) -> None:
    save_report([ring], tmp_path / "r.html", names=["ring.json"])
    text = (tmp_path / "r.html").read_text()
    assert (tmp_path / "r.html").stat().st_size < 3_000_000
    own = re.sub(r"<script(?! type=.application/json. id=.facts).*?</script>", "", text, flags=re.DOTALL)
    assert re.findall(r"(?:src|href)=\"(?!#|data:)[^\"]*\"", own) == []
    assert not re.search(r"<script[^>]+src=", text)
    for words in ("completion time", "lower bound", "Why no schedule can be faster", "links on", "has all its data at"):
        assert words in own
    assert "<html lang=" in text
    assert own.count("<caption>") >= 5


def test_the_text_is_that_of_explain(ring) -> None:
    from flowccl.explain.words import last_arrival, path_in_parts

    text, found = report_html([ring]), explain(ring)
    assert path_in_parts(found) in text
    assert last_arrival(found) in text


def test_names_are_escaped(ring) -> None:
    nodes = (replace(ring.topology.nodes[0], name="<b>&gpu"), *ring.topology.nodes[1:])
    strange = replace(ring, topology=replace(ring.topology, name="<i>m</i>", nodes=nodes))
    text = report_html([strange], names=["<script>alert(1)</script>"])
    assert "<i>m</i>" not in text
    assert "&lt;i&gt;m" in text
    assert "<script>alert" not in text


def test_two_schedules_are_compared_on_one_time_axis(ring) -> None:
    other = made("ring:4", "allgather", 40_000, "direct")
    text = report_html([ring, other], names=["ring.json", "direct.json"])
    assert "<h2>Comparison</h2>" in text
    assert 'href="#schedule-1">direct.json</a>' in text
    assert text.count('"name":"Range1d"') == 7  # one time axis; two axes of each machine, one of each timeline


@settings(max_examples=40, deadline=None)
@given(spread_out(buffers=False))
def test_times_of_links_add_up(schedule: Schedule) -> None:
    assume(len(schedule) > 0)
    times = link_times(schedule)
    parts = times.busy + times.waits_data + times.waits_other + times.not_needed
    assert (parts == schedule.finish_ps).all()
    assert min(part.min() for part in (times.busy, times.waits_data, times.waits_other, times.not_needed)) >= 0
    timing = schedule.timing
    for link in range(len(schedule.topology.links)):
        rows = timing.hop_link == link
        spans = sorted(zip(timing.hop_from_ps[rows].tolist(), timing.hop_to_ps[rows].tolist(), strict=True))
        busy, until = 0, 0
        for begin, end in spans:
            busy += max(0, end - max(begin, until))
            until = max(until, end)
        assert times.busy[link] == busy


def test_idle_time_has_its_reason() -> None:
    """On a line, the second link waits for data; the first one is not needed any more once it has sent."""
    line = made("line:3:bandwidth=10GB/s:latency=0.5us", "broadcast", 10_000, "direct")
    times, names = link_times(line), [line.topology.link_name(k) for k in range(len(line.topology.links))]
    first, second = names.index("gpu0 -> gpu1"), names.index("gpu1 -> gpu2")
    assert (times.waits_data[first], times.not_needed[first]) == (0, 2_000_000)
    assert (times.waits_data[second], times.not_needed[second]) == (1_500_000, 500_000)


@pytest.mark.parametrize(("what", "method"), [("allgather", "ring"), ("allreduce", "ring"), ("alltoall", "direct")])
def test_every_gpu_has_its_data_at_the_end(what: str, method: str) -> None:
    schedule = made("torus:3x3", what, 90_000, method)
    gpu, time, size = completed(schedule)
    assert time.max() == schedule.finish_ps
    assert len(gpu) == len(schedule.demand.destination_rank)
    columns = report_columns(explain(schedule))
    last = [columns.arrivals["part"][columns.arrivals["gpu"] == n][-1] for n in range(9)]
    assert last == pytest.approx([1.0] * 9)
    assert size.min() > 0
    assert columns.in_flight["bytes"][-1] == 0
    assert columns.in_flight["bytes"].max() > 0


def test_columns_are_sorted_and_complete(ring) -> None:
    columns = report_columns(explain(ring))
    assert len(columns.hops["link"]) == len(ring.timing.hop_link)
    assert np.all(np.diff(columns.hops["link"]) >= 0)
    same = np.diff(columns.hops["link"]) == 0
    assert np.all(np.diff(columns.hops["start"])[same] > 0)
    assert columns.transfers["critical"].sum() == len(explain(ring).path)
    assert (columns.left_out_hops, columns.left_out_links) == (0, 0)


def test_too_many_transfers_are_left_out_and_the_page_says_so(ring, monkeypatch) -> None:
    monkeypatch.setattr(report_columns_module, "MOST_HOPS", 7)
    columns = report_columns(explain(ring))
    assert len(columns.hops["link"]) <= 7
    path = {step.link for step in explain(ring).path}
    assert path & set(columns.links.tolist())
    assert columns.left_out_hops == len(ring.timing.hop_link) - len(columns.hops["link"])
    assert f"The timeline leaves out {columns.left_out_hops} transfers on" in report_html([ring])


def test_a_link_with_too_many_transfers_is_cut(monkeypatch) -> None:
    monkeypatch.setattr(report_columns_module, "MOST_HOPS", 5)
    long = made("ring:2", "allgather", 40_000, "direct", chunks=8)
    columns = report_columns(explain(long))
    assert (len(columns.links), len(columns.hops["link"]), columns.late_hops, columns.left_out_hops) == (1, 5, 3, 8)
    assert "Of the links that it shows, the timeline leaves out the last 3 transfers." in report_html([long])


def test_runtimes_say_what_lowering_costs(ring) -> None:
    rows = {row.name: row for row in runtime_rows(ring)}
    assert set(rows) == {"msccl", "executor", "rccl", "mscclpp"}
    assert {row.verdict for row in rows.values()} == {"yes"}
    lowered = lower_for(ring, PROFILES["msccl"])
    assert rows["msccl"].time == format_us(lowered.program_us)
    assert rows["msccl"].note.startswith(f"{lowered.threadblocks} threadblock")
    assert lowered.program_ps > ring.finish_ps  # messages cost time
    assert "Runtimes that load it: mscclpp (about" in report_html([ring])


def test_a_schedule_for_a_runtime_is_compared_with_its_own_costs(ring) -> None:
    profile = PROFILES["mscclpp"]
    own = carried_out(ring, profile)
    rows = {row.name: row for row in runtime_rows(own)}
    assert rows["mscclpp"].time == format_us(lower_for(own, profile).program_us)
    assert "made for mscclpp: its times include what a message costs there" in runtimes_section(own, [rows["mscclpp"]])


def test_large_schedules_are_lowered_on_request(ring, monkeypatch) -> None:
    monkeypatch.setattr(report_runtimes, "MOST_TRANSFERS", 7)
    text = report_html([ring])
    assert "Which runtimes load it: not tried for this many transfers" in text
    assert f"Lowering {len(ring)} transfers takes about 1 s and was left out: <code>flowccl report --runtimes" in text
    assert "Runtimes that load it: mscclpp (about" in report_html([ring], runtimes=True)
    monkeypatch.setattr(report_runtimes, "MOST_TRANSFERS", 30)
    assert report_runtimes.quickly_lowered([ring, ring, made("ring:2", "allgather", 40_000)]) == [True, True, True]
    assert report_runtimes.quickly_lowered([ring, ring, ring]) == [True, True, False]
    gather = made("ring:4", "gather", 40_000, "direct")
    row = {row.name: row for row in runtime_rows(gather, lower=False)}["mscclpp"]
    assert row.verdict == "no"  # known without lowering
    assert row.note.startswith("mscclpp does not support gather; it supports allgather")


@pytest.mark.parametrize(
    ("what", "method", "first"),
    [
        ("allgather", "ring", "source"),
        ("alltoall", "direct", "source"),
        ("allreduce", "ring", "phase"),
        ("reduce_scatter", "ring", "destination"),
        ("reduce", "direct", "sender"),
        ("broadcast", "direct", "sender"),
    ],
)
def test_colours_tell_transfers_apart(what: str, method: str, first: str) -> None:
    """Chunks of a reduction have no source of their own, so other things decide."""
    transfers = report_columns(explain(made("ring:4", what, 40_000, method))).transfers
    choices = colourings(transfers)
    assert choices[0].key == first
    assert all(len(np.unique(transfers[choice.column])) > 1 for choice in choices)
    if what in ("allreduce", "reduce_scatter"):
        assert set(transfers["source"].tolist()) == {-1}
        assert [choice.key for choice in choices] == [first, "chunk", "sender"]


def test_refused(ring, tmp_path, capsys) -> None:
    good, machine_file, other = tmp_path / "s.json", tmp_path / "m.json", tmp_path / "o.json"
    save_schedule(ring, good)
    save_schedule(made("ring:5", "allgather", 40_000), other)
    save_topology(ring.topology, machine_file)
    empty, text, folder = tmp_path / "empty.json", tmp_path / "t.json", tmp_path / "d.html"
    nothing = {name: getattr(ring, name)[:0] for name in ("chunk", "route", "start_ps", "reduce")}
    save_schedule(replace(ring, **nothing), empty)
    text.write_text("hello")
    folder.mkdir()
    out, pdf, nowhere = tmp_path / "r.html", tmp_path / "r.pdf", tmp_path / "no" / "r.html"
    cases = {
        f"{machine_file} --out {out}": f"{machine_file}: format must be 'flowccl-schedule', got \"flowccl-topology\"",
        f"{text} --out {out}": f"{text}: not JSON: Expecting value at line 1, column 1",
        f"{tmp_path / 'none.json'} --out {out}": f"{tmp_path / 'none.json'}: no such file",
        f"{good} {other} --out {out}": "the schedules are for different machines, ring:4 and ring:5; "
        "a comparison needs one machine: make a report of each",
        f"{empty} --out {out}": "the schedule has no transfers, so there is nothing to explain",
        f"{good} --out {pdf}": f"--out {pdf}: the name must end in .html",
        f"{good} --out {nowhere}": f"--out {nowhere}: there is no folder {nowhere.parent}",
        f"{good} --out {folder}": f"--out {folder}: is a folder, not a file",
        " ".join([str(good)] * 9) + f" --out {out}": "a report shows at most 8 schedules, got 9",
    }
    for words, message in cases.items():
        assert main(["report", *words.split()]) == 2
        assert capsys.readouterr().err == f"flowccl: error: {message}\n"
    assert not out.exists()
    broken = tmp_path / "broken.json"
    save_schedule(replace(ring, start_ps=ring.start_ps * 0), broken)
    assert main(["report", str(broken), "--out", str(tmp_path / "r.html")]) == 1
    with pytest.raises(InputError, match="at least one schedule"):
        report_html([])


def test_a_place_without_permission_is_refused_before_the_work(ring, tmp_path, capsys, monkeypatch) -> None:
    save_schedule(ring, tmp_path / "s.json")
    monkeypatch.setattr(os, "access", lambda *_: False)  # for an administrator, every place is writable
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "s.json"), "--out", str(out)]) == 2
    message = f"--out {out}: no permission to write to the folder {tmp_path}"
    assert capsys.readouterr().err == f"flowccl: error: {message}\n"


@pytest.mark.slow
def test_ten_million_transfers(tmp_path) -> None:
    """Takes some minutes and 9 GB of memory. The page says what it leaves out, and stays small."""
    schedule = made("ring:8", "allgather", 8 * 178_600 * 1000, chunks=178_600)
    assert len(schedule) > 10_000_000
    text = report_html([schedule])
    hops = report_columns(explain(schedule))
    assert 0 < len(hops.hops["link"]) <= report_columns_module.MOST_HOPS
    assert f"The timeline leaves out {hops.left_out_hops:,} transfers" in text
    assert f"leaves out the last {hops.late_hops:,} transfers" in text
    assert "not tried for this many transfers" in text
    assert len(text) < 10_000_000


def test_without_bokeh_the_message_names_the_extra(ring, tmp_path, capsys, monkeypatch) -> None:
    save_schedule(ring, tmp_path / "s.json")
    monkeypatch.setitem(sys.modules, "bokeh", None)
    assert main(["report", str(tmp_path / "s.json"), "--out", str(tmp_path / "r.html")]) == 2
    assert "reports need Bokeh: pip install flowccl[report]" in capsys.readouterr().err


def test_command_writes_next_to_the_caller(ring, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_schedule(ring, "ring.json")
    assert main(["report", "ring.json"]) == 0
    assert capsys.readouterr().out == "ring.html\n"
    assert (tmp_path / "ring.html").exists()


def test_a_catalog_shows_time_by_size(tmp_path, capsys) -> None:
    built = tmp_path / "plans"
    build_catalog(machine("ring:4"), built, OPTIONS, TaskEngine(jobs=1))
    assert main(["report", str(built), "--out", str(tmp_path / "c.html")]) == 0
    text = (tmp_path / "c.html").read_text()
    catalog = load_catalog(built)
    for plan in catalog.plans:
        assert plan.name in text
    assert "Which plan serves which size" in text
    assert text.count("<h2>") == len(catalog.collectives)
    assert not re.search(r"<script[^>]+src=", text)
    assert main(["report", str(built), str(built), "--out", str(tmp_path / "d.html")]) == 2
    assert "is a folder: give one catalog, or schedule files" in capsys.readouterr().err
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "d.html")]) == 2
    assert "contains no catalog.json" in capsys.readouterr().err
    with pytest.raises(InputError, match="the catalog has no times"):
        catalog_html(replace(catalog, times=()))
