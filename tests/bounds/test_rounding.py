"""Results do not depend on the CPU: noise in the last bits of floats changes neither a bound nor its witness."""

import numpy as np
import pytest

from flowccl.bounds import cuts, partitions
from flowccl.bounds.cut_families import _spectral_orders
from flowccl.bounds.lower_bound import lower_bound
from flowccl.bounds.rounding import on_grid, whole_ps
from flowccl.demand.collectives import collective
from flowccl.topology.machines import machine

NAMES = ["ring:8", "torus:4x4", "hypercube:3", "dgx1", "dgx_a100:2", "line:5", "star:6"]


def noisy(function, random, scale=4):
    """The function with a relative error of a few units in the last place."""
    return lambda *args: function(*args) * (1 + random.integers(-scale, scale + 1) * 2.0**-53)


def test_whole_picoseconds_ignore_the_last_bits():
    for ps in (1.0, 3.0, 2_000_001.0, 40_002_700_000.0):
        assert {whole_ps(ps * (1 + k * 2.0**-52)) for k in range(-4, 5)} == {int(ps)}
    assert whole_ps(2.5) == 3
    assert whole_ps(-1.0) == 0


def test_values_on_a_grid_ignore_the_last_bits():
    values = np.array([0.1 + 0.2, 0.3, 0.0, 1.0, 1e-30])
    assert on_grid(values)[0] == on_grid(values)[1]
    assert on_grid(values)[2:].tolist() == [0, 2**30, 1]
    assert on_grid(np.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", NAMES)
def test_spectral_orders_do_not_depend_on_the_linear_algebra_library(name, monkeypatch):
    """Other signs and errors of the size that a backward stable solver makes."""
    topology, random, eigh = machine(name), np.random.default_rng(1), np.linalg.eigh
    expected = [order.tolist() for order in _spectral_orders(topology)]

    def other(matrix):
        error = random.normal(size=matrix.shape) * 2.0**-52 * np.abs(matrix).max()
        values, vectors = eigh(matrix + error + error.T)
        return values, vectors * random.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(np.linalg, "eigh", other)
    for _ in range(20):
        assert [order.tolist() for order in _spectral_orders(topology)] == expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["allgather", "allreduce", "broadcast", "alltoall"])
def test_noise_changes_neither_the_bound_nor_the_witness(name, kind, monkeypatch):
    topology, random = machine(name), np.random.default_rng(2)
    demand = collective(kind, topology.num_gpus, 64_000)
    expected = lower_bound(topology, demand)
    monkeypatch.setattr(cuts.Cut, "earliest_partial_ps", noisy(cuts.Cut.earliest_partial_ps, random))
    monkeypatch.setattr(cuts.Cut, "GBps", property(noisy(cuts.Cut.GBps.fget, random)))
    monkeypatch.setattr(partitions.Crossing, "GBps", property(noisy(partitions.Crossing.GBps.fget, random)))
    for _ in range(2):
        assert lower_bound(topology, demand) == expected
