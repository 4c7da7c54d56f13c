"""The compiled part of `waiting`: the first use of each message, and the group that waits for it."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner

_NIC = 1
_PEER_BITS = 20


class Uses(NamedTuple):
    """What uses the data of messages: entries and deliveries, with the versions that they read."""

    ptr: I64
    delivery_ptr: I64
    version: I64
    packed: I64
    added_version: I64
    owner: I64  # of each delivery: its message
    is_nic: Bool
    start: I64
    posted: I64
    whole: I64  # of each message: when it is whole at its first end
    issuer: I64
    receiver: I64


class Waits(NamedTuple):
    """The messages inside a host, and the groups of the GPUs, numbered `GPU * groups + group`."""

    start_order: I64  # the messages in the order of their starts
    source: I64  # the group that issues each message
    target: I64  # the first group of the GPU that receives it
    peer: I64  # the GPU that receives it, as its sender numbers it
    back: I64  # the GPU that sends it, as its receiver numbers it
    receiver: I64  # the first group that works on it, or -1
    time: I64  # of its first use
    arrival: I64  # when it is whole
    user: I64  # the group that uses it first, or -1
    reserved: Bool  # the messages whose groups of the same number keep a channel
    usual: I64  # of each group: the GPUs to which it keeps one
    load: I64  # of each group: its operations
    job_ptr: I64  # what each group does: from when until when, in order
    job_start: I64
    job_end: I64


class Rules(NamedTuple):
    """Limits, and the times from which on nothing uses a message."""

    groups: int
    receivers: int  # groups that work on a message together
    channels: int
    crowded: int
    tried: int
    late: int
    strict: bool


@inner
def _use(uses: Uses, delivery: int, time: int, group: int, first: I64) -> None:
    m = uses.owner[delivery]
    if first[m, 1] < -1 or time < first[m, 0]:
        first[m, 0], first[m, 1] = time, group


@compiled
def first_uses(uses: Uses) -> I64:
    """Return (time, group) of the first use of each message.

    The group is -1 where a message over a NIC is first, and -2 where there is none.
    """
    first = np.zeros((len(uses.start), 2), dtype=np.int64)
    first[:, 1] = -2
    for m in range(len(uses.start)):
        for e in range(uses.ptr[m], uses.ptr[m + 1]):
            if uses.version[e] >= 0:
                by_nic = uses.is_nic[m] and uses.packed[e] < 0
                time = uses.posted[m] if by_nic else uses.start[m]
                _use(uses, uses.version[e], time, -1 if by_nic else max(uses.issuer[m], 0), first)
        for d in range(uses.delivery_ptr[m], uses.delivery_ptr[m + 1]):
            if uses.added_version[d] >= 0:
                _use(uses, uses.added_version[d], uses.whole[m], max(uses.receiver[m], 0), first)
    return first


@inner
def _moment(waits: Waits, place: int, m: int, early: bool) -> int:
    """When a group can wait for a message so that neither is late; -1: never.

    That is when the message is first used, if the group does nothing then; otherwise before what it does then, which
    is looked at if `early`: that must not begin before the message arrives.
    """
    low, high, time = waits.job_ptr[place], waits.job_ptr[place + 1], waits.time[m]
    while low < high:
        middle = (low + high) // 2
        if waits.job_start[middle] < time:
            low = middle + 1
        else:
            high = middle
    moment: int = -1
    if low == waits.job_ptr[place] or waits.job_end[low - 1] <= time:
        if not early:
            moment = time
    elif early and waits.arrival[m] <= waits.job_start[low - 1]:
        moment = waits.job_start[low - 1] - 1
    return moment


@inner
def _wanted(waits: Waits, rules: Rules, m: int, wanted: I64, moment: I64) -> tuple[int, int]:
    """Write the groups that may wait for a message, and when; return their number, and how many to try by their load.

    That is 0 where they are tried in the order in which they are written: those that work on the message come first.
    """
    here, time = waits.target[m], waits.time[m]
    moment[:] = time
    issuer = here + waits.source[m] % rules.groups
    is_crowded, is_late, count = waits.load[issuer] > rules.crowded, time >= rules.late, 0
    if waits.receiver[m] >= 0:
        for k in range(rules.receivers):
            wanted[k] = waits.receiver[m] + k
        if rules.strict:
            return rules.receivers, 0
        count, is_crowded = rules.receivers, False
    elif waits.user[m] >= 0:
        wanted[0] = waits.user[m]
        return 1, 0
    if is_late and not is_crowded:
        return 0, 0
    for k in range(1 if is_late else 0, (rules.groups + 1) * (1 if is_late else 2)):
        place = issuer if k % (rules.groups + 1) == 0 else here + k % (rules.groups + 1) - 1
        moment[count] = time if is_late else _moment(waits, place, m, k > rules.groups)
        if moment[count] >= 0:
            wanted[count] = place
            count += 1
    if not is_crowded:
        return count, 0
    return count, rules.tried if is_late else count


@inner
def _next(waits: Waits, wanted: I64, count: int) -> int:
    """The wanted group with the least operations; -1 where none is left."""
    best = -1
    for k in range(count):
        if wanted[k] >= 0 and (best < 0 or waits.load[wanted[k]] < waits.load[wanted[best]]):
            best = k
    return best


@inner
def _channel(here: int, there: int, peer: int, back: int, places: int) -> int:
    """The key of the channel between two groups, the same from both ends."""
    if back < peer or (back == peer and here <= there):
        return ((here * places + there) << _PEER_BITS) + peer
    return ((there * places + here) << _PEER_BITS) + back


@compiled
def waiting_groups(waits: Waits, rules: Rules) -> tuple[I64, I64]:
    """Return the group that waits for each message, the first wanted one to which a channel fits, and when it waits.

    If none fits, the group with the number of the group that issues the message waits, when the message is first used.
    The group is -1 where that has no channel either, or is not wanted, if the rules are strict; what follows is not
    filled then.
    """
    result, time = np.zeros(len(waits.source), dtype=np.int64), waits.time.copy()
    peers = np.zeros(len(waits.load), dtype=np.int64)
    known = {np.int64(-1): np.int64(0)}
    for m in waits.start_order:
        if waits.reserved[m]:
            there = waits.target[m] + waits.source[m] % rules.groups
            known[np.int64(_channel(waits.source[m], there, waits.peer[m], waits.back[m], len(peers)))] = np.int64(0)
    wanted, moment = np.empty((2, 2 * rules.groups + 2 + rules.receivers), dtype=np.int64)
    for m in waits.start_order:
        count, tried = _wanted(waits, rules, m, wanted, moment)
        here, issuer = waits.source[m], waits.target[m] + waits.source[m] % rules.groups
        group, most = -1, tried if tried else count
        for n in range(most + (0 if rules.strict and count else 1)):
            k = -1 if n == most else _next(waits, wanted, count) if tried else n
            if k < 0 and n < most:
                continue
            there = wanted[k] if k >= 0 else issuer
            if k >= 0:
                wanted[k] = -1
            key = np.int64(_channel(here, there, waits.peer[m], waits.back[m], len(peers)))
            fits = max(peers[here] + waits.usual[here], peers[there] + waits.usual[there]) < rules.channels
            if key in known or fits:
                if key not in known:
                    known[key] = np.int64(0)
                    peers[here] += 1
                    peers[there] += 1
                group = there
                time[m] = moment[k] if k >= 0 else waits.time[m]
                break
        result[m] = group
        if group < 0:
            return result, time
        waits.load[group] += 1 if waits.time[m] >= rules.late else 3
    return result, time
