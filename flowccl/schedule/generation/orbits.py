"""Orbits of messages: what one GPU does stands for what all GPUs do, on machines that look the same from each.

The images of the messages of GPU 0's data under a regular group are the messages of all data, at the same times. Every
GPU sends and receives one image of each, so all GPUs are one, and the links of an orbit are one link. A message to the
GPU that an element maps the sender to has this element in the place of its peer.
"""

from typing import TYPE_CHECKING

import numpy as np

from flowccl.topology.symmetry.regular_groups import RegularGroup

if TYPE_CHECKING:
    from flowccl.schedule.generation.engine_state_kernels import Capacity, MessageArrays


def in_orbits(messages: "MessageArrays", group: RegularGroup) -> "MessageArrays":
    """Return the messages of GPU 0's data on one GPU and on orbits of links."""
    orbit = group.link_orbits
    images = len(group) / np.bincount(orbit)  # of a message that cross each link of an orbit
    return messages._replace(
        source=np.zeros_like(messages.source),
        target=np.zeros_like(messages.target),
        peer=group.difference(messages.target, messages.source),
        hop_resource=orbit[messages.hop_resource],
        hop_weight=messages.hop_weight * images[orbit[messages.hop_resource]],
    )


def of_orbits(capacity: "Capacity", group: RegularGroup) -> "Capacity":
    """Return what one GPU and each orbit of links have."""
    bandwidth = np.zeros(int(group.link_orbits.max(initial=-1)) + 1)
    bandwidth[group.link_orbits] = group.topology.link_GBps
    return capacity._replace(bandwidth_GBps=bandwidth, nodes=1)
