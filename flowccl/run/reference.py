"""Reference execution of a schedule on numpy arrays in one process; all other executions must give the same result.

Events happen in order of time. A root reads its value of the chunk when it starts to send. On arrival, a chunk is
reduced with the value of the end if the transfer reduces, else it replaces that value. At equal times, arrivals come
before sends.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import ScheduleError
from flowccl.run.element_layout import ElementLayout, count_of_inputs, make_layout
from flowccl.schedule.schedule import Schedule

Array = NDArray[Any]


def execute(schedule: Schedule, inputs: Sequence[Array], count: int | None = None) -> list[Array]:
    """Return the outputs of all ranks for their inputs: flat arrays of one dtype, in the layout of `make_layout`.

    `count` is the number of elements of the whole buffer (the size of nccl-tests); by default it follows from the
    inputs. Memories, relays and switches have buffers of their own.
    """
    arrays = [np.asarray(buffer).reshape(-1) for buffer in inputs]
    layout = make_layout(schedule.demand, count_of_inputs(schedule.demand, arrays) if count is None else count)
    for rank, (array, size) in enumerate(zip(arrays, layout.input_count, strict=True)):
        if len(array) != size:
            raise ScheduleError(f"rank {rank}: the input must have {size} elements, got {len(array)}")
    dtype = np.result_type(*(array.dtype for array in arrays))
    outputs = [np.zeros(size, dtype=dtype) for size in layout.output_count]
    execute_into(schedule, layout, arrays, outputs)
    return outputs


def execute_into(schedule: Schedule, layout: ElementLayout, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Fill the outputs, which may share memory with the inputs (in place): inputs are read first."""
    value: dict[tuple[int, int], Array] = {
        (rank, chunk): inputs[rank][place].copy() for (rank, chunk), place in layout.taken.items()
    }
    in_flight: dict[int, Array] = {}
    timing, nodes = schedule.timing, schedule.topology.nodes
    for is_send, row in events(schedule):
        if is_send:
            i, node = int(timing.root_transfer[row]), int(timing.root_node[row])
            chunk = int(schedule.chunk[i])
            if (node, chunk) not in value:
                raise ScheduleError(f"transfer {i}: {nodes[node].name} sends chunk {chunk}, which it does not have")
            sent = value[node, chunk]
            in_flight[i] = in_flight[i] + sent if i in in_flight else sent
        else:
            i, node = int(timing.end_transfer[row]), int(timing.end_node[row])
            key = (node, int(schedule.chunk[i]))
            value[key] = value[key] + in_flight[i] if schedule.reduce[i] and key in value else in_flight[i]
    place_outputs(layout, value, inputs, outputs)


def events(schedule: Schedule) -> list[tuple[bool, int]]:
    """Return all sends and arrivals by time: (is a send, row of the roots or of the ends in `schedule.timing`)."""
    if schedule.shape.problem:
        route, words = next(iter(schedule.shape.problem.items()))
        raise ScheduleError(f"route {route} {words}")
    timing = schedule.timing
    roots, ends = len(timing.root_from_ps), len(timing.end_arrival_ps)
    time = np.concatenate((timing.root_from_ps, timing.end_arrival_ps))
    sends = np.concatenate((np.ones(roots, dtype=np.int8), np.zeros(ends, dtype=np.int8)))
    row = np.concatenate((np.arange(roots), np.arange(ends)))
    order = np.lexsort((row, sends, time))
    return list(zip(sends[order].astype(bool).tolist(), row[order].tolist(), strict=True))


def place_outputs(
    layout: ElementLayout, value: dict[tuple[int, int], Array], inputs: Sequence[Array], outputs: Sequence[Array]
) -> None:
    """Write the chunks of the destinations and the kept parts to the outputs."""
    kept = [(rank, there, inputs[rank][here].copy()) for rank, here, there in layout.kept]
    for (rank, chunk), place in layout.placed.items():
        if (rank, chunk) not in value:
            raise ScheduleError(f"gpu{rank} ends without chunk {chunk}")
        outputs[rank][place] = value[rank, chunk]
    for rank, place, part in kept:
        outputs[rank][place] = part
