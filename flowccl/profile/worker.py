"""One process of a profile: plays its part of every round; rank 0 writes down what all have measured.

The same code on gloo, MPI and NCCL: a backend brings messages and sums. A round ends with a sum over all processes, to
which every sender adds its own times, so that all know all of them, and which those that have no part just wait for.
"""

import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.profile.fit import fit_links
from flowccl.profile.measurements import Floats, Measured, add_line, head_to_json, round_to_json
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
from flowccl.run.measure import Backend
from flowccl.run.values import find_dtype

_NAME_BYTES = 64  # of a host's name
_DATA, _ANSWER, _SYNC = 1, 2, 3  # tags


def take_measurements(
    backend: Backend,
    ranks: int,
    on: str,
    options: PlanOptions,
    part: Path,
    on_round: Callable[[int], None] | None = None,
) -> None:
    """Run the whole plan; rank 0 adds each round to the file of lines `part`."""
    check_ranks(ranks)
    hosts = _host_names(backend, ranks)
    first = alone_rounds(hosts, options)
    usual = dict.fromkeys(all_links(ranks), 1.0)
    planned = len(first) + len(together_rounds(hosts, options, usual))
    if backend.process == 0:
        part.unlink(missing_ok=True)
        add_line(part, head_to_json(on, hosts, options, planned))
    player = _Player(backend, lambda turn: None if backend.process else _note(part, turn, planned, on_round))
    alone = player.play(first)
    sizes = _agree_on_sizes(backend, ranks, alone, options)
    player.play(together_rounds(hosts, options, {}, sizes))


def _note(part: Path, turn: dict[str, Any], planned: int, on_round: Callable[[int], None] | None) -> None:
    """What rank 0 does after a round."""
    add_line(part, turn)
    if on_round is not None:
        on_round(planned)


def _host_names(backend: Backend, ranks: int) -> list[str]:
    """The name of each rank's host; letters travel as numbers, for that is what can be summed."""
    letters = np.zeros((ranks, _NAME_BYTES))
    mine = list(socket.gethostname().encode()[:_NAME_BYTES]) or [ord("?")]
    letters[backend.process, : len(mine)] = mine
    rows = np.array(backend.sums(letters.ravel().tolist())).reshape(ranks, _NAME_BYTES)
    return [bytes(int(letter) for letter in row if letter).decode(errors="replace") for row in rows]


def _agree_on_sizes(backend: Backend, ranks: int, alone: list[Measured], options: PlanOptions) -> dict[Ends, int]:
    """Bytes of each link in probes of several, as rank 0 says."""
    links = all_links(ranks)
    numbers = [0.0] * len(links)
    if backend.process == 0:
        chosen = together_bytes({link: fit.bandwidth_GBps for link, fit in fit_links(alone).items()}, options)
        numbers = [float(chosen.get(link, 0)) for link in links]
    agreed = backend.sums(numbers)
    return {link: int(size) for link, size in zip(links, agreed, strict=True) if size >= 1}


class _Player:
    """One process with its buffers."""

    def __init__(self, backend: Backend, note: Callable[[dict[str, Any]], None]) -> None:
        self.backend, self.note = backend, note
        self.byte = find_dtype("uint8")
        self.buffers: dict[tuple[str, int], Any] = {}

    def play(self, rounds: Iterable[Round]) -> list[Measured]:
        """All rounds, one after the other; everybody knows the times."""
        result = []
        self.backend.sums([0.0])
        for probes in rounds:
            start = time.perf_counter()
            numbers = [self._times(probe) for probe in probes]
            flat = self.backend.sums(np.concatenate([part.ravel() for part in numbers]).tolist())
            wall_s = time.perf_counter() - start
            cuts = np.cumsum([part.size for part in numbers])[:-1]
            seconds = [
                part.reshape(mine.shape) for part, mine in zip(np.split(np.array(flat), cuts), numbers, strict=True)
            ]
            self.note(round_to_json(probes, seconds, wall_s))
            result += [Measured(probe, part, wall_s) for probe, part in zip(probes, seconds, strict=True)]
        return result

    def _times(self, probe: Probe) -> Floats:
        """What this process measures of a probe: the times of the links on which it sends; else zeros."""
        seconds = np.zeros((probe.repeats, len(probe.links)))
        rank = self.backend.process
        if rank not in probe.ranks:
            return seconds
        sends = [(link[1], size) for link, size in zip(probe.links, probe.chunk_bytes, strict=True) if link[0] == rank]
        gets = [(link[0], size) for link, size in zip(probe.links, probe.chunk_bytes, strict=True) if link[1] == rank]
        mine = [place for place, link in enumerate(probe.links) if link[0] == rank]
        for repeat in range(-1, probe.repeats):
            self._meet(probe.ranks)
            start = time.perf_counter()
            for _ in range(1 if probe.at_once else probe.chunks):
                self._send(sends, gets, probe.chunks if probe.at_once else 1)
            if repeat >= 0:
                seconds[repeat, mine] = time.perf_counter() - start
        return seconds

    def _send(self, sends: list[tuple[int, int]], gets: list[tuple[int, int]], times: int) -> None:
        """So many chunks each way at once, then the answers."""
        out = [(peer, _DATA, self._buffer("out", peer, size)) for peer, size in sends for _ in range(times)]
        into = [(peer, _DATA, self._buffer(f"in{k}", peer, size)) for peer, size in gets for k in range(times)]
        answered = [(peer, _ANSWER, self._buffer("answered", peer, 1)) for peer, _ in sends]
        answers = [(peer, _ANSWER, self._buffer("answer", peer, 1)) for peer, _ in gets]
        self.backend.exchange(out, into)
        self.backend.exchange(answers, answered)

    def _meet(self, ranks: tuple[int, ...]) -> None:
        """Begin together: all tell the first, the first tells all."""
        rank = self.backend.process
        others = ranks[1:] if rank == ranks[0] else ranks[:1]
        told = [(peer, _SYNC, self._buffer("told", peer, 1)) for peer in others]
        tell = [(peer, _SYNC, self._buffer("tell", peer, 1)) for peer in others]
        if rank == ranks[0]:
            self.backend.exchange([], told)
            self.backend.exchange(tell, [])
        else:
            self.backend.exchange(tell, [])
            self.backend.exchange([], told)

    def _buffer(self, use: str, peer: int, size: int) -> Any:
        """Bytes for one use with one peer; made once, for the largest."""
        found = self.buffers.get((use, peer))
        if found is None or len(found) < size:
            found = self.buffers[use, peer] = self.backend.empty(size, self.byte)
        return found[:size]
