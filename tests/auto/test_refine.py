"""Refined schedules are valid, also where two GPUs exchange partial reductions."""

from flowccl.auto.refine import refined
from flowccl.demand.collectives import collective
from flowccl.schedule.generation.list_scheduling import list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify


def _exchange() -> Schedule:
    """Two GPUs exchange both blocks; a transfer takes 1.1 us, and the second of each exchange starts 1.07 us later."""
    topology = machine("line:2:bandwidth=10GB/s:latency=1us")
    there, back = 0, 1
    assert topology.links[there].src == 0
    demand = collective("allreduce", 2, 2000)
    rows = [(0, [there], 0, True), (1, [back], 0, True), (1, [there], 1_070_000, True), (0, [back], 1_070_000, True)]
    return Schedule.from_transfers(topology, demand, rows)


def test_an_exchange_that_is_too_late_for_smaller_chunks_is_not_refined() -> None:
    """Halves arrive after 1.05 us, before the other GPU has sent."""
    schedule, fine = _exchange(), collective("allreduce", 2, 2000, 2)
    assert verify(schedule) == []
    halves = subdivide(schedule, fine)
    assert halves is not None
    assert verify(halves) != []
    assert list(refined(schedule, fine, SearchContext.with_limit(1.0))) == [None]
    early = list_schedule(schedule)
    assert early is not None
    (found,) = refined(early, fine, SearchContext.with_limit(1.0))
    assert found is not None
    assert verify(found) == []


def test_both_transfers_of_an_exchange_start_as_soon_as_both_gpus_have_their_data() -> None:
    """Without other data, all start at once: two blocks of 0.1 us each on every link, and 1 us of latency."""
    found = list_schedule(_exchange())
    assert found is not None
    assert verify(found) == []
    assert found.finish_us == 1.2
