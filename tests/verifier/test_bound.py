"""The lower bound of a schedule is the one that its search proved."""

import pytest

from flowccl import lower_bound, machine, save_schedule, synthesize
from flowccl.cli import main
from flowccl.verifier.bound import bound_of


@pytest.mark.parametrize("runtime", ["ideal", "mscclpp"])
def test_the_bound_of_a_schedule_is_that_of_its_search(runtime: str) -> None:
    result = synthesize(machine("dgx_h100:1"), "allgather", 65_536, method="direct", runtime=runtime)
    assert bound_of(result.schedule) == result.bound


def test_verify_prints_the_bound_of_the_runtime(tmp_path, capsys) -> None:
    result = synthesize(machine("dgx_h100:1"), "allgather", 65_536, method="direct", runtime="mscclpp")
    path = tmp_path / "schedule.json"
    save_schedule(result.schedule, path)
    assert main(["verify", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"lower bound {result.bound.us:g} us" in printed
    assert lower_bound(result.schedule.topology, result.schedule.demand).us < result.bound.us
