"""Sizes with units: exact values and exact messages."""

import pytest

from flowccl.errors import InputError
from flowccl.units import parse_bytes


@pytest.mark.parametrize(
    ("value", "size"), [("64MB", 64_000_000), ("1KiB", 1024), ("1.5 KB", 1500), ("+7", 7), (4096, 4096), (2.0, 2)]
)
def test_parse_bytes(value, size):
    assert parse_bytes(value) == size


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1MB", "size '-1MB': must not be negative"),
        ("-0.5", "size '-0.5': must not be negative"),
        (-1, "size -1: must not be negative"),
        (-1e6, "size -1000000.0: must not be negative"),
        ("0", "size '0': must be at least 1 byte"),
        (0, "size 0: must be at least 1 byte"),
        ("0.5B", "size '0.5B': must be at least 1 byte"),
        ("1.5B", "size '1.5B': 1.5 bytes is not a whole number of bytes"),
        ("2000PB", "size '2000PB': must be at most 2^60 bytes"),
        ("1XB", "size: cannot read '1XB'; write for example 64MB, 1KiB or 4096"),
        (True, "size: expected text or a number such as 64MB, 1KiB or 4096, got bool"),
    ],
)
def test_messages_of_parse_bytes(value, message):
    with pytest.raises(InputError) as error:
        parse_bytes(value)
    assert str(error.value) == message
