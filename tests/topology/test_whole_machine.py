import pytest

from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.topology.symmetry.whole_machine import whole_machine


@pytest.mark.parametrize(
    ("without", "slow"),
    [
        (["gpu0 <-> gpu1"], []),
        (["gpu0 -> gpu1"], []),
        ([], ["gpu0 <-> gpu1=50Gb/s"]),
        (["gpu2 <-> gpu6"], ["gpu0 -> gpu1=50Gb/s"]),
    ],
)
def test_lost_and_slow_links_are_restored(without: list[str], slow: list[str]) -> None:
    whole = machine("torus:4x4")
    found = whole_machine(with_faults(whole, without=without, slow=slow))
    assert found is not None
    assert set(found.links) == set(whole.links)


@pytest.mark.parametrize("name", ["dgx_h100:4", "dgx_a100:3", "dgx_h100:16"])
@pytest.mark.parametrize(
    ("without", "slow"),
    [
        (["gpu3 <-> rail3"], []),
        (["gpu3 -> rail3"], ["gpu9 <-> rail1=5GBps"]),
        (["gpu3 -> nvswitch0"], []),
    ],
)
def test_links_of_switches_are_restored(name: str, without: list[str], slow: list[str]) -> None:
    whole = machine(name)
    faulty = with_faults(whole, without=without, slow=slow)
    found = whole_machine(faulty)
    assert found is not None
    assert set(found.links) == set(whole.links)
    ends = [(link.src, link.dst) for link in faulty.links]
    assert [(link.src, link.dst) for link in found.links[: len(ends)]] == ends


@pytest.mark.parametrize("name", ["torus:4x4", "dgx1", "dgx_h100:2"])
def test_no_faults_or_no_such_symmetry(name: str) -> None:
    assert whole_machine(machine(name)) is None


def test_many_faults_are_another_machine() -> None:
    lost = [f"gpu{rank} <-> gpu{rank + 1}" for rank in (0, 4, 8, 12)]
    assert whole_machine(with_faults(machine("torus:4x4"), without=lost)) is None
