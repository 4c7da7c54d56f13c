"""Symmetric schedules for a runtime: verified in compact form, with the same findings as in whole."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl import synthesize
from flowccl.schedule.compact import CompactSchedule, made_from
from flowccl.verifier.compact import verify_found, verify_whole
from flowccl.verifier.verify import verify

_CHANGES = ("", "earlier", "one group", "faster", "all at once")


def _changed(compact: CompactSchedule, change: str) -> CompactSchedule:
    one = compact.one
    start = one.start_ps.copy()
    start[np.argmax(start)] //= 2
    columns = {
        "": {},
        "earlier": {"start_ps": start},
        "one group": {"issuer": np.zeros_like(one.issuer)},
        "faster": {"rate_GBps": 1.5 * one.rate_GBps},
        "all at once": {"start_ps": 0 * start},
    }
    return replace(compact, one=replace(one, **columns[change]))


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "reduce_scatter", "allreduce"])
def test_the_compact_form_has_the_violations_of_the_whole(collective):
    found = synthesize(
        "dgx_h100:4", collective, 4_194_304, runtime="mscclpp", method="symmetric", steps=8, gap=0.0
    ).schedule
    compact = made_from(found)
    assert compact is not None
    assert verify_found(found) == []
    wrong = 0
    for change in _CHANGES:
        other = _changed(compact, change)
        kinds = {one.kind for one in verify(other.expanded())}
        assert {one.kind for one in verify_whole(other)} == kinds, change
        wrong += bool(kinds)
    assert wrong >= 3


def test_two_messages_of_different_gpus_do_not_share_a_group():
    """GPU 0 sends its first message while others send theirs; as images of GPU 0's messages they would overlap."""
    found = synthesize("dgx_h100:1", "allgather", 1 << 20, runtime="mscclpp", method="symmetric", steps=1).schedule
    compact = made_from(found)
    assert compact is not None
    one = compact.one
    assert len(one) > 1
    same = replace(one, issuer=np.zeros_like(one.issuer), start_ps=0 * one.start_ps)
    assert "threadblocks" in {violation.kind for violation in verify_whole(replace(compact, one=same))}
