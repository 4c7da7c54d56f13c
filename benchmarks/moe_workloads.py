"""Byte matrices of mixture-of-experts layers, each made from its name, a seed and a step.

Matrices have a diagonal of zeros and are scaled to a mean per pair, in multiples of 512 bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

UNIT_BYTES = 512
_ZIPF_RANKS = 1024

Matrix = NDArray[np.int64]
Weights = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """Number of GPUs, and how many of them are in a host."""

    gpus: int
    per_host: int = 8


def matrix(name: str, shape: Shape, mean_bytes: float = 1e6, seed: int = 0, step: int = 0) -> Matrix:
    """Return the byte matrix of a workload; the same arguments always give the same one."""
    rng = np.random.default_rng([seed, step, *name.encode()])
    weights = WORKLOADS[name](rng, shape, np.random.default_rng([seed, *name.encode()]), step)
    np.fill_diagonal(weights, 0.0)
    scale = mean_bytes * shape.gpus * (shape.gpus - 1) / max(weights.sum(), 1e-300)
    result: Matrix = (np.round(weights * scale / UNIT_BYTES) * UNIT_BYTES).astype(np.int64)
    return result


def routing(
    shape: Shape, experts: int, top_k: int, tokens: int, seed: int = 0, step: int = 0, skew: float = 0.0
) -> NDArray[np.int64]:
    """Return the experts of every token, [gpus, tokens, top_k]; expert e is drawn with weight (e + 1)^-skew, shuffled.

    With `skew` 0 every set of experts is equally likely.
    """
    rng = np.random.default_rng([seed, step, experts, top_k])
    weights = (1.0 + np.random.default_rng([seed, experts]).permutation(experts)) ** -skew
    noise = rng.gumbel(size=(shape.gpus, tokens, experts)).astype(np.float32) + np.log(weights).astype(np.float32)
    return np.argpartition(-noise, top_k - 1, axis=2)[:, :, :top_k].astype(np.int64)


def _uniform(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    return np.ones((shape.gpus, shape.gpus))


def _zipf(exponent: float) -> "Workload":
    def make(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
        rank = np.arange(1, _ZIPF_RANKS + 1)
        chance = rank**-exponent
        return rng.choice(rank, (shape.gpus, shape.gpus), p=chance / chance.sum()).astype(np.float64)

    return make


def _hot_expert(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """One GPU receives a quarter of what every GPU sends."""
    weights = rng.uniform(0.8, 1.2, (shape.gpus, shape.gpus))
    hot = int(rng.integers(shape.gpus))
    weights[:, hot] = weights.sum(axis=1) / 3
    return weights


def _hot_rank(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """One GPU sends eight times as much as the others."""
    weights = rng.uniform(0.8, 1.2, (shape.gpus, shape.gpus))
    weights[int(rng.integers(shape.gpus))] *= 8
    return weights


def _spread_hot(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """One GPU of every host receives eight times as much as the others."""
    weights = rng.uniform(0.8, 1.2, (shape.gpus, shape.gpus))
    for first in range(0, shape.gpus, shape.per_host):
        weights[:, first + int(rng.integers(min(shape.per_host, shape.gpus - first)))] *= 8
    return weights


def _ragged(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """Sources with between none and twice the mean number of tokens."""
    return rng.uniform(0.8, 1.2, (shape.gpus, shape.gpus)) * rng.uniform(0, 2, (shape.gpus, 1))


def _without_load(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """A quarter of the GPUs send nothing, a quarter receive nothing."""
    weights = rng.uniform(0.5, 1.5, (shape.gpus, shape.gpus))
    weights[rng.permutation(shape.gpus)[: shape.gpus // 4]] = 0
    weights[:, rng.permutation(shape.gpus)[: shape.gpus // 4]] = 0
    return weights


def _rotating(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """A hot GPU that moves on by one with every step."""
    weights = rng.uniform(0.9, 1.1, (shape.gpus, shape.gpus))
    weights[:, (int(fixed.integers(shape.gpus)) + step) % shape.gpus] *= 16
    return weights


def _burst(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """A few pairs with 64 times the mean."""
    weights = rng.uniform(0.8, 1.2, (shape.gpus, shape.gpus))
    count = shape.gpus // 2
    weights[rng.integers(shape.gpus, size=count), rng.integers(shape.gpus, size=count)] *= 64
    return weights


def _top_k(experts: int, top_k: int, skew: float) -> "Workload":
    def make(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
        tokens, seed = 512, int(rng.integers(2**31))
        chosen = routing(shape, experts, top_k, tokens, seed, skew=skew)
        owner = np.arange(experts) * shape.gpus // experts
        source = np.broadcast_to(np.arange(shape.gpus)[:, None, None], chosen.shape)
        counts = np.bincount((source * shape.gpus + owner[chosen]).reshape(-1), minlength=shape.gpus**2)
        return counts.reshape(shape.gpus, shape.gpus).astype(np.float64)

    return make


def _uneven_inside(rng: np.random.Generator, shape: Shape, fixed: np.random.Generator, step: int) -> Weights:
    """Every host sends the same to every other host, between few of their GPUs."""
    weights = rng.exponential(1.0, (shape.gpus, shape.gpus)) ** 4
    host = np.arange(shape.gpus) // shape.per_host
    hosts = int(host[-1]) + 1
    np.fill_diagonal(weights, 0.0)
    total = np.zeros((hosts, hosts))
    np.add.at(total, (host[:, None], host[None, :]), weights)
    return weights / np.maximum(total[host[:, None], host[None, :]], 1e-300)


Workload = Callable[[np.random.Generator, Shape, np.random.Generator, int], Weights]
WORKLOADS: dict[str, Workload] = {
    "uniform": _uniform,
    **{f"zipf {exponent:g}": _zipf(exponent) for exponent in (0.1, 0.3, 0.5, 0.8, 0.9, 0.99)},
    "hot expert": _hot_expert,
    "hot rank": _hot_rank,
    "spread hot experts": _spread_hot,
    "ragged sources": _ragged,
    "without load": _without_load,
    "rotating hotspot": _rotating,
    "burst": _burst,
    "top 8 of 64": _top_k(64, 8, 0.0),
    "top 8 of 256": _top_k(256, 8, 0.0),
    "top 8 of 256, skewed": _top_k(256, 8, 0.6),
    "uneven inside": _uneven_inside,
}
