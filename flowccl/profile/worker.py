"""One process of a profile: takes part in every round; rank 0 writes the times of all processes.

The same code runs on gloo, MPI and NCCL; the backend provides messages and an allreduce. Each round ends with an
allreduce in which every sender contributes its own times. All processes then know all times, and processes without a
part in the round wait there for its end.
"""

import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.profile.fit import fit_links
from flowccl.profile.measurements import Floats, MeasuredProbe, add_line, head_to_json, round_to_json
from flowccl.profile.probes import (
    Ends,
    PlanOptions,
    Probe,
    Round,
    all_links,
    alone_rounds,
    check_ranks,
    together_bytes,
    together_rounds,
)
from flowccl.run.backends import Backend
from flowccl.run.values import find_dtype

_NAME_BYTES = 64  # of a host's name
_DATA, _ANSWER, _SYNC = 1, 2, 3  # tags


def take_measurements(
    backend: Backend, on: str, options: PlanOptions, part: Path, on_round: Callable[[int], None] | None = None
) -> None:
    """Run the whole plan; rank 0 appends each round to the file `part`."""
    ranks = backend.processes
    check_ranks(ranks)
    hosts = _host_names(backend, ranks)
    first = alone_rounds(hosts, options)
    usual = dict.fromkeys(all_links(ranks), 1.0)
    planned = len(first) + len(together_rounds(hosts, options, usual))
    if backend.process == 0:
        part.unlink(missing_ok=True)
        add_line(part, head_to_json(on, hosts, options, planned))
    runner = _ProbeRunner(
        backend, lambda turn: None if backend.process else _record_round(part, turn, planned, on_round)
    )
    alone = runner.run_rounds(first)
    sizes = _agree_on_sizes(backend, ranks, alone, options)
    runner.run_rounds(together_rounds(hosts, options, {}, sizes))


def _record_round(part: Path, turn: dict[str, Any], planned: int, on_round: Callable[[int], None] | None) -> None:
    """Append a round to the file, on rank 0, and report progress."""
    add_line(part, turn)
    if on_round is not None:
        on_round(planned)


def _host_names(backend: Backend, ranks: int) -> list[str]:
    """Host name of each rank; the characters are exchanged as numbers through an allreduce."""
    letters = np.zeros((ranks, _NAME_BYTES))
    local = list(socket.gethostname().encode()[:_NAME_BYTES]) or [ord("?")]
    letters[backend.process, : len(local)] = local
    rows = np.array(backend.allreduce(letters.ravel().tolist())).reshape(ranks, _NAME_BYTES)
    return [bytes(int(letter) for letter in row if letter).decode(errors="replace") for row in rows]


def _agree_on_sizes(backend: Backend, ranks: int, alone: list[MeasuredProbe], options: PlanOptions) -> dict[Ends, int]:
    """Bytes of each link in probes of several links; rank 0 decides."""
    links = all_links(ranks)
    numbers = [0.0] * len(links)
    if backend.process == 0:
        chosen = together_bytes({link: fit.bandwidth_GBps for link, fit in fit_links(alone).items()}, options)
        numbers = [float(chosen.get(link, 0)) for link in links]
    agreed = backend.allreduce(numbers)
    return {link: int(size) for link, size in zip(links, agreed, strict=True) if size >= 1}


class _ProbeRunner:
    """Runs the probes of one process and keeps its buffers."""

    def __init__(self, backend: Backend, record: Callable[[dict[str, Any]], None]) -> None:
        self.backend, self.record = backend, record
        self.byte = find_dtype("uint8")
        self.buffers: dict[tuple[str, int], Any] = {}

    def run_rounds(self, rounds: Iterable[Round]) -> list[MeasuredProbe]:
        """Run all rounds in order and return the times, which are the same on all processes."""
        result = []
        self.backend.allreduce([0.0])
        for probes in rounds:
            start = time.perf_counter()
            numbers = [self._times(probe) for probe in probes]
            flat = self.backend.allreduce(np.concatenate([part.ravel() for part in numbers]).tolist())
            wall_s = time.perf_counter() - start
            cuts = np.cumsum([part.size for part in numbers])[:-1]
            seconds = [
                part.reshape(local.shape) for part, local in zip(np.split(np.array(flat), cuts), numbers, strict=True)
            ]
            self.record(round_to_json(probes, seconds, wall_s))
            result += [MeasuredProbe(probe, part, wall_s) for probe, part in zip(probes, seconds, strict=True)]
        return result

    def _times(self, probe: Probe) -> Floats:
        """Times of the links on which this process sends; zeros for the other links of the probe."""
        seconds = np.zeros((probe.repeats, len(probe.links)))
        rank = self.backend.process
        if rank not in probe.ranks:
            return seconds
        sends = [(link[1], size) for link, size in zip(probe.links, probe.chunk_bytes, strict=True) if link[0] == rank]
        receives = [
            (link[0], size) for link, size in zip(probe.links, probe.chunk_bytes, strict=True) if link[1] == rank
        ]
        local = [place for place, link in enumerate(probe.links) if link[0] == rank]
        for repeat in range(-1, probe.repeats):
            self._synchronize(probe.ranks)
            start = time.perf_counter()
            for _ in range(1 if probe.at_once else probe.chunks):
                self._send(sends, receives, probe.chunks if probe.at_once else 1)
            if repeat >= 0:
                seconds[repeat, local] = time.perf_counter() - start
        return seconds

    def _send(self, sends: list[tuple[int, int]], receives: list[tuple[int, int]], times: int) -> None:
        """Exchange `times` concurrent chunks per link, then the answers."""
        out = [(peer, _DATA, self._buffer("out", peer, size)) for peer, size in sends for _ in range(times)]
        into = [(peer, _DATA, self._buffer(f"in{k}", peer, size)) for peer, size in receives for k in range(times)]
        answered = [(peer, _ANSWER, self._buffer("answered", peer, 1)) for peer, _ in sends]
        answers = [(peer, _ANSWER, self._buffer("answer", peer, 1)) for peer, _ in receives]
        self.backend.exchange(out, into)
        self.backend.exchange(answers, answered)

    def _synchronize(self, ranks: tuple[int, ...]) -> None:
        """Barrier over some ranks: all signal the first rank, and the first rank signals all."""
        rank = self.backend.process
        others = ranks[1:] if rank == ranks[0] else ranks[:1]
        signals_received = [(peer, _SYNC, self._buffer("sync received", peer, 1)) for peer in others]
        signals_sent = [(peer, _SYNC, self._buffer("sync sent", peer, 1)) for peer in others]
        if rank == ranks[0]:
            self.backend.exchange([], signals_received)
            self.backend.exchange(signals_sent, [])
        else:
            self.backend.exchange(signals_sent, [])
            self.backend.exchange([], signals_received)

    def _buffer(self, use: str, peer: int, size: int) -> Any:
        """A byte buffer for one use with one peer, reused and enlarged as needed."""
        found = self.buffers.get((use, peer))
        if found is None or len(found) < size:
            found = self.buffers[use, peer] = self.backend.empty(size, self.byte)
        return found[:size]
