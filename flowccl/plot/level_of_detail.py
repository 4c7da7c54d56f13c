"""Timelines with more bars than pixels: an image in which every pixel has the mean colour of its time.

Bars that are narrower than a pixel would hide each other, and the last one drawn would decide the colour.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.plot.picture import SOFT

F64 = NDArray[np.float64]
COLUMNS = 1_400
"""Pixels of the image from left to right: as many as a timeline of 11 inches has at 130 dots per inch."""

_ROW, _EDGE = 10, 1  # pixels of a row, and of its empty edges


def row_image(
    row: NDArray[np.int64],
    begin: F64,
    until: F64,
    colours: F64,
    weight: F64,
    rows: int,
    span: tuple[float, float],
    columns: int = COLUMNS,
) -> F64:
    """Return an image of shape (rows, columns, 4): the mean colour of the bars, and the busy part of the time as alpha.

    Bar i is in `row[i]` from `begin[i]` to `until[i]`, and counts with its weight: bars that share a row at a time, as
    the chunks of a message do, have weights that add up to 1.
    """
    image = np.zeros((rows, columns, 4))
    edges = np.linspace(*span, columns + 1)
    for number in np.unique(row).tolist():
        in_row = row == number
        part = _means(begin[in_row], until[in_row], colours[in_row, :3], weight[in_row], edges)
        busy = part[:, 3]
        image[number, :, :3] = part[:, :3] / np.maximum(busy, 1e-12)[:, None]
        image[number, :, 3] = np.minimum(busy, 1.0)
    image[..., 3] = np.where(image[..., 3] > 1e-9, 0.2 + 0.8 * image[..., 3], 0.0)  # a short bar stays visible
    return np.clip(image, 0.0, 1.0)


def _means(begin: F64, until: F64, colours: F64, weight: F64, edges: F64) -> F64:
    """The means between edges of colour times weight, and of weight, over time."""
    time = np.concatenate((begin, until))
    level = np.column_stack((colours * weight[:, None], weight))
    order = np.argsort(time, kind="stable")
    slope = np.cumsum(np.concatenate((level, -level))[order], axis=0)
    total = np.concatenate((np.zeros((1, 4)), np.cumsum(slope[:-1] * np.diff(time[order])[:, None], axis=0)))
    at_edges = np.column_stack([np.interp(edges, time[order], total[:, channel]) for channel in range(4)])
    return np.asarray(np.diff(at_edges, axis=0) / np.diff(edges)[:, None])


def draw_image(axes: Any, image: F64, span: tuple[float, float]) -> None:
    """Draw the image behind the axes of a timeline, with gaps between the rows, and say how to read it."""
    rows = len(image)
    tall = np.zeros((rows * _ROW, image.shape[1], 4))
    for line in range(_EDGE, _ROW - _EDGE):
        tall[line::_ROW] = image
    axes.imshow(tall, extent=(*span, rows - 0.5, -0.5), aspect="auto", interpolation="nearest", zorder=2)
    words = "more transfers than pixels: mean colours, paler where a link is idle for a part of the time"
    axes.annotate(words, (0, 0), (0, -38), "axes fraction", "offset points", fontsize=7.5, color=SOFT, va="top")
