"""Helpers for arrays."""

import numpy as np
import pytest

from flowccl.arrays import components, pointers


@pytest.mark.parametrize(
    ("counts", "expected"),
    [([], [0]), ([2, 0, 3], [0, 2, 2, 5]), (np.array([True, True]), [0, 1, 2]), (np.array([1], np.int32), [0, 1])],
)
def test_pointers(counts, expected) -> None:
    found = pointers(counts)
    assert found.tolist() == expected
    assert found.dtype == np.int64


def test_components() -> None:
    """A path has one component, and none of its nodes is in a circle."""
    assert len(set(components(4, [0, 1], [1, 2]).tolist())) == 2
    assert len(set(components(4, [0, 1], [1, 2], strong=True).tolist())) == 4
    assert len(set(components(4, [0, 1, 2], [1, 2, 0], strong=True).tolist())) == 2
