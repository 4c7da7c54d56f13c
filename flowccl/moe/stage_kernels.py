"""Stages of a plan: the step of each message when plans run as rounds of point-to-point sends."""

import numpy as np

from flowccl.compiled import I32, I64, compiled


@compiled
def stages_in_order(
    order: I64,
    first: I64,
    pair: I32,
    pair_src: I64,
    pair_dst: I64,
    host_of: I64,
    chunk: I64,
    message: I64,
    passed_on: int,
    chunks: int,
) -> I64:
    """Return the stage of each message; `order` sorts them by time, `chunk` and `message` say what they carry.

    A message is in a stage behind those of the messages that bring its data. Its sender sends, and its receiver gets,
    at most one message between hosts per stage; messages inside hosts share stages. After the first `passed_on` rows
    of `chunk` and `message`, nothing waits for what they carry.
    """
    count = len(pair)
    ptr = np.zeros(count + 1, dtype=np.int64)
    for k in range(len(message)):
        ptr[message[k] + 1] += 1
    for m in range(count):
        ptr[m + 1] += ptr[m]
    at, carried = ptr[:-1].copy(), np.empty(len(message), np.int64)
    goes_on = np.zeros(len(message), np.bool_)
    for k in range(len(message)):
        carried[at[message[k]]] = chunk[k]
        goes_on[at[message[k]]] = k < passed_on
        at[message[k]] += 1
    ready = np.zeros(chunks, dtype=np.int64)
    sent, got = np.zeros(len(host_of), dtype=np.int64), np.zeros(len(host_of), dtype=np.int64)
    stage = np.zeros(count, dtype=np.int64)
    for m in order:
        now = 0
        for k in range(ptr[m], ptr[m + 1]):
            now = max(now, ready[carried[k]])
        across = first[1] <= m < first[2]
        if across:
            now = max(now, sent[pair_src[pair[m]]], got[pair_dst[pair[m]]])
            sent[pair_src[pair[m]]] = now + 1
            got[pair_dst[pair[m]]] = now + 1
        stage[m] = now
        for k in range(ptr[m], ptr[m + 1]):
            if goes_on[k]:
                ready[carried[k]] = max(ready[carried[k]], now + 1)
    return stage
