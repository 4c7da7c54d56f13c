"""The machines and tables of the benchmark `unseen`."""

from random import Random

import pytest

from benchmarks.unseen import free_relations, main, table
from benchmarks.unseen_machines import KINDS, draw
from benchmarks.unseen_named import NAMED
from benchmarks.unseen_relations import shuffled
from flowccl.errors import InputError
from flowccl.synthesis import synthesize


def test_a_seed_always_draws_the_same_machine():
    assert draw(7).topology == draw(7).topology
    assert draw(7).topology != draw(8).topology


def test_machines_are_of_all_kinds_and_a_third_is_uneven():
    machines = [draw(seed) for seed in range(200)]
    assert {one.kind for one in machines} == set(KINDS)
    assert all(8 <= one.topology.num_gpus <= 64 for one in machines)
    assert sum(one.is_uneven for one in machines) >= 67
    assert all(len(one.faults) in (0, 2) for one in machines)


def test_another_order_of_nodes_keeps_the_links():
    whole = draw(4).topology
    other = shuffled(whole, Random(1))
    names = [sorted((t.link_name(k), t.links[k].bandwidth_GBps) for k in range(len(t.links))) for t in (whole, other)]
    assert names[0] == names[1]
    assert other.num_gpus == whole.num_gpus


def _row(collective, size_bytes, finish_us, gap):
    return {
        "seed": 1, "kind": "torus", "gpus": 8, "collective": collective, "size_bytes": size_bytes, "gap": gap,
        "finish_us": finish_us, "unused_s": 0.0,
    }  # fmt: skip


def test_broken_relations_are_listed():
    rows = [_row("allreduce", 16_000_000, 100.0, 0.01), _row("allreduce", 64_000_000, 500.0, 0.3)]
    assert "1 of 1 broken" in free_relations(rows)
    assert "by 25.0%: seed 1: allreduce 64MB 500, 16MB 100 us" in free_relations(rows)
    assert "30.00%" in table(rows)


def test_seeds_are_checked():
    with pytest.raises(InputError, match="write A:B with A below B, for example 0:12; got '3'"):
        main(["--seeds", "3"])


@pytest.mark.slow
def test_a_reduce_scatter_takes_the_steps_of_the_allgather_on_the_reversed_machine():
    """Methods that continue what others found see a reduction run backwards: so both find the same."""
    topology = NAMED[3].drawn().topology
    rows = ((topology, "reduce_scatter"), (topology.reversed, "allgather"))
    found = [synthesize(machine, name, 1_000_000, steps=80, time_limit_s=600).schedule for machine, name in rows]
    assert found[0].finish_ps == pytest.approx(found[1].finish_ps, rel=0.005)
    assert found[0].finish_us < 54
