"""Counting routed tokens: how many tokens of a GPU go to the same GPUs of the same host."""

import numpy as np

from flowccl.compiled import I64, compiled


@compiled
def count_tokens(
    experts: I64, rank: int, copy_ptr: I64, copy_gpu: I64, host_of: I64, place: I64, slots: int
) -> tuple[I64, I64, I64]:
    """Return (host, mask of the places of GPUs there, number of tokens) for the tokens [tokens, k] of GPU `rank`.

    Expert e is on the GPUs `copy_gpu[copy_ptr[e]:copy_ptr[e + 1]]`. A token takes the copy on its own GPU, else the
    first one in its own host, else copies in turn by rank. The GPU itself is left out: its tokens need not move.
    `slots` is a power of two, larger than the number of results.
    """
    chosen = np.empty(len(copy_ptr) - 1, dtype=np.int64)
    for expert in range(len(chosen)):
        first, many = copy_ptr[expert], copy_ptr[expert + 1] - copy_ptr[expert]
        best = copy_gpu[first + rank % many]
        for k in range(first + many - 1, first - 1, -1):
            if host_of[copy_gpu[k]] == host_of[rank]:
                best = copy_gpu[k]
        for k in range(first, first + many):
            if copy_gpu[k] == rank:
                best = rank
        chosen[expert] = best
    key_host, key_mask = np.full(slots, -1, dtype=np.int64), np.zeros(slots, dtype=np.int64)
    count = np.zeros(slots, dtype=np.int64)
    width = experts.shape[1]
    hosts, masks = np.empty(width, dtype=np.int64), np.empty(width, dtype=np.int64)
    found = 0
    for token in range(len(experts)):
        here = 0
        for k in range(width):
            gpu = chosen[experts[token, k]]
            if gpu == rank:
                continue
            at = 0
            while at < here and hosts[at] != host_of[gpu]:
                at += 1
            if at == here:
                hosts[at], masks[at] = host_of[gpu], 0
                here += 1
            masks[at] |= 1 << place[gpu]
        for at in range(here):
            slot = (hosts[at] * 2654435761 + masks[at] * 40503 + (masks[at] >> 16)) & (slots - 1)
            while key_host[slot] >= 0 and (key_host[slot] != hosts[at] or key_mask[slot] != masks[at]):
                slot = (slot + 1) & (slots - 1)
            if key_host[slot] < 0:
                key_host[slot], key_mask[slot] = hosts[at], masks[at]
                found += 1
            count[slot] += 1
    used = np.empty(found, dtype=np.int64)
    at = 0
    for slot in range(slots):
        if key_host[slot] >= 0:
            used[at] = slot
            at += 1
    return key_host[used], key_mask[used], count[used]
