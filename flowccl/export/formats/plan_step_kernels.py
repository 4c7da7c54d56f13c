"""The compiled part of `plan_steps`: the cells that operations access, and where a barrier of threads is missing."""

import numpy as np

from flowccl.compiled import I64, Bool, compiled, inner

BARRIER, LOOPS, WAITS, WORKS, ANNOUNCES, SIGNALS = range(6)
"""What an operation is for the threads of its threadblock: a barrier, a mark of a loop, a wait, work of all threads, or
what other GPUs or threadblocks see; a signal may come after a wait."""
BEFORE_WAIT, BEFORE_WORK, BEFORE_SIGNAL = 1, 2, 3
"""Where a barrier is missing."""


@compiled
def cells_of(
    size: I64, source_ptr: I64, target_ptr: I64, base: I64, assign_ptr: I64, read_ptr: I64
) -> tuple[I64, I64, I64]:
    """Return the cells that all operations write, where the cells begin that are read for each of them, and those.

    Operation n stores the reduction of `size[n]` cells from the places `base[source_ptr[n]:target_ptr[n]]` at each of
    the places after these, up to `source_ptr[n + 1]`.
    """
    target, source_from = np.empty(assign_ptr[-1], np.int64), np.zeros(assign_ptr[-1] + 1, np.int64)
    source = np.empty(read_ptr[-1], np.int64)
    row, read = 0, 0
    for n in range(len(size)):
        for k in range(size[n]):
            for t in range(target_ptr[n], source_ptr[n + 1]):
                target[row] = base[t] + k
                for s in range(source_ptr[n], target_ptr[n]):
                    source[read] = base[s] + k
                    read += 1
                row += 1
                source_from[row] = read
    return target, source_from, source


@inner
def _meets(touched: I64, count: int, base: int, size: int) -> bool:
    """Whether some cells are among those that were touched."""
    found = False
    for i in range(count):
        found |= base < touched[i, 0] + touched[i, 1] and touched[i, 0] < base + size
    return found


@compiled
def missing_barriers(thread: I64, role: I64, size: I64, base_ptr: I64, base: I64, has_flags: Bool, most: int) -> I64:
    """Return for each operation whether it needs a barrier before it and has none: BEFORE_..., or 0.

    It accesses `size[n]` cells from each of `base[base_ptr[n]:base_ptr[n + 1]]`, `most` such places in a threadblock.
    Packets need no barrier: they have flags.
    """
    found, touched = np.zeros(len(role), dtype=np.int64), np.zeros((most, 2), dtype=np.int64)
    count, waited, worked = 0, False, False
    for n in range(len(role)):
        if role[n] <= LOOPS or n == 0 or thread[n] != thread[n - 1]:
            count, waited, worked = 0, role[n] == LOOPS, role[n] == LOOPS  # threads may still do what ends a loop
        if role[n] == WAITS:
            found[n] = BEFORE_WAIT if worked else 0
            waited = True
        elif role[n] == WORKS:
            before, meets = count, waited
            for k in range(base_ptr[n], base_ptr[n + 1]):
                if not has_flags[k]:
                    meets |= _meets(touched, before, base[k], size[n])
                    touched[count, 0], touched[count, 1] = base[k], size[n]
                    count += 1
            found[n] = BEFORE_WORK if meets else 0
            worked = True
        elif role[n] >= ANNOUNCES:
            found[n] = BEFORE_SIGNAL if worked or (waited and role[n] == ANNOUNCES) else 0
    return found
