import shutil
import time

import pytest

from flowccl import machine, synthesize, verify, with_faults
from flowccl.catalog.build import machine_id
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.failures import PreparedFailures, map_schedule, prepare_failures, single_failures
from flowccl.catalog.files import load_catalog
from flowccl.catalog.model import BuildSettings, Catalog
from flowccl.catalog.replan import replan
from flowccl.errors import FileError


def test_nics_of_a_rail_cluster_are_one_orbit():
    failures = single_failures(machine("dgx_h100:2"), "nics")
    assert len(failures) == 16
    assert {failure.planned for failure in failures} == {failures[0].name} == {"gpu0 <-> rail0"}
    assert len({failure.fingerprint for failure in failures}) == 16


def test_links_that_disconnect_are_refused_with_their_names():
    failures = single_failures(machine("line:3"), "links")
    assert [failure.name for failure in failures] == ["gpu0 <-> gpu1", "gpu1 <-> gpu2"]
    assert all("disconnects" in failure.refused for failure in failures)


@pytest.mark.parametrize("name", ["allgather", "alltoall", "reduce_scatter", "allreduce"])
def test_a_plan_is_mapped_to_every_failure_of_its_orbit(name):
    topology = machine("ring:4")
    schedule = synthesize(topology, name, 64_000, chunks=1, steps=2, time_limit_s=600).schedule
    failures = single_failures(topology, "links")
    made = replan(schedule, without=[failures[0].planned], steps=0).schedule
    for failure in failures:
        mapped = map_schedule(made, failure)
        assert verify(mapped) == []
        assert mapped.finish_ps == made.finish_ps
        faulty = with_faults(topology, without=[failure.name])
        assert {(k.src, k.dst) for k in mapped.topology.links} == {(k.src, k.dst) for k in faulty.links}


def test_prepared_failures_are_found_by_the_fingerprint(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "plans")
    catalog, topology = load_catalog(folder), machine("ring:4")
    failures = prepare_failures(folder, catalog, topology, "links", TaskEngine(jobs=1), steps=0)
    prepared = PreparedFailures(folder)
    for failure in failures:
        fingerprint = with_faults(topology, without=[failure.name]).fingerprint
        begin = time.perf_counter()
        found = prepared.find(fingerprint)
        assert time.perf_counter() - begin < 0.5
        assert found == failure
        for plan in catalog.plans:
            assert verify(prepared.schedule(found, plan.name)) == []
    assert prepared.find("0" * 16) is None
    with pytest.raises(FileError, match="has no plan nothing"):
        prepared.schedule(failures[0], "nothing")


def test_the_failure_of_a_nic_of_four_hosts_is_looked_up_in_milliseconds(tmp_path):
    """32 NICs of one orbit; the table has no plans here."""
    topology = machine("dgx_h100:4")
    catalog = Catalog(machine_id(topology), "ideal", BuildSettings(1, 1, 1, 0, 0.0), (), ())
    failures = prepare_failures(tmp_path, catalog, topology, "nics", TaskEngine(jobs=1), steps=0)
    assert len(failures) == 32
    assert {failure.planned for failure in failures} == {"gpu0 <-> rail0"}
    prepared, fingerprint = PreparedFailures(tmp_path), failures[-1].fingerprint
    begin = time.perf_counter()
    found = prepared.find(fingerprint)
    assert time.perf_counter() - begin < 0.5
    assert found == failures[-1]
