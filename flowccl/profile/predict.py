"""Predict how long `flowccl run` takes for a schedule on a machine.

A schedule fixes start times, but the processes that run it keep only its order. A process executes its program level by
level. In each level it first spends the overheads of the messages that it sends or receives, one after the other. A
message flows once both ends have done so, at its max-min fair share of the links and limits that it uses; its latency
follows. The prediction therefore differs from the finish of the schedule.
"""

from dataclasses import dataclass, field

import numpy as np

from flowccl.profile.flows import Floats, Uses, fair_rates
from flowccl.run.element_layout import make_layout
from flowccl.run.program import Message, MessageProgram, make_program
from flowccl.schedule.schedule import Schedule


def predict_us(schedule: Schedule, size_bytes: int) -> float:
    """Predicted time of a call with a buffer of `size_bytes`, averaged over all processes."""
    program = make_program(schedule)
    sizes = make_layout(schedule.demand, size_bytes).chunk_count
    return _RunSimulation(program, sizes).run() * 1e6


@dataclass
class _RunSimulation:
    """Event simulation of a run: the level of each process and the messages in flight."""

    program: MessageProgram
    chunk_bytes: list[int]
    now_s: float = 0.0
    at: list[int] = field(default_factory=list)  # current level of each process
    ready_s: list[float] = field(default_factory=list)  # when each process has spent the overheads of its level
    waits: list[set[int]] = field(default_factory=list)  # messages that each process waits for
    flows: dict[int, float] = field(default_factory=dict)  # message: bytes left
    lands: dict[int, float] = field(default_factory=dict)  # message: arrival time

    def run(self) -> float:
        """Simulate the run and return its duration in seconds."""
        machine = _message_costs(self.program)
        exchanges = [_exchanges(self.program, process, self.chunk_bytes) for process in range(self.program.processes)]
        self.at = [-1] * self.program.processes
        self.ready_s = [0.0] * self.program.processes
        self.waits = [set() for _ in exchanges]
        end = [0.0] * self.program.processes
        while True:
            for process, levels in enumerate(exchanges):
                while not self.waits[process] and self.at[process] < len(levels):
                    self.at[process] += 1
                    end[process] = self.now_s
                    if self.at[process] < len(levels):
                        self.waits[process] = set(levels[self.at[process]])
                        self.ready_s[process] = self.now_s + float(machine.overhead_s[levels[self.at[process]]].sum())
            self._start_flows()
            if not self.flows and not self.lands and max(self.ready_s) <= self.now_s:
                return float(np.mean(end))
            self._advance(machine)

    def _start_flows(self) -> None:
        """Start the messages whose two ends have reached their level and spent its overheads."""
        open_at = [
            waits if ready <= self.now_s else set() for waits, ready in zip(self.waits, self.ready_s, strict=True)
        ]
        for message in self.program.messages:
            both = message.tag in open_at[message.src_process] and message.tag in open_at[message.dst_process]
            if both and message.tag not in self.flows and message.tag not in self.lands:
                self.flows[message.tag] = float(self.chunk_bytes[message.chunk])

    def _advance(self, machine: "_MessageCosts") -> None:
        """Advance to the next event: a message has sent all bytes, has arrived, or a process is ready."""
        tags = list(self.flows)
        rates = fair_rates(machine.uses[tags], machine.capacity)
        left = [self.flows[tag] / rate for tag, rate in zip(tags, rates.tolist(), strict=True)]
        ready = [at for at in self.ready_s if at > self.now_s]
        until = min([self.now_s + time for time in left] + list(self.lands.values()) + ready)
        for tag, rate, time in zip(tags, rates.tolist(), left, strict=True):
            if self.now_s + time <= until * (1 + 1e-12):
                del self.flows[tag]
                self.lands[tag] = until + float(machine.latency_s[tag])
            else:
                self.flows[tag] -= rate * (until - self.now_s)
        self.now_s = until
        for tag in [tag for tag, at in self.lands.items() if at <= until * (1 + 1e-12)]:
            del self.lands[tag]
            message = self.program.messages[tag]
            self.waits[message.src_process].discard(tag)
            self.waits[message.dst_process].discard(tag)


def _exchanges(program: MessageProgram, process: int, chunk_bytes: list[int]) -> list[list[int]]:
    """Messages that a process exchanges in each level; empty messages are not sent."""
    levels = []
    for level in program.levels[process]:
        sent = [step for step in level.steps if isinstance(step, Message) and not step.local]
        levels.append([message.tag for message in (*sent, *level.receives) if chunk_bytes[message.chunk]])
    return levels


@dataclass(frozen=True, eq=False)
class _MessageCosts:
    """The links and limits that each message uses, their capacities in bytes/s, and its overhead and latency."""

    uses: Uses
    capacity: Floats
    overhead_s: Floats
    latency_s: Floats


def _message_costs(program: MessageProgram) -> _MessageCosts:
    schedule = program.schedule
    topology = schedule.topology
    links = len(topology.links)
    limits = np.array([limit.bandwidth_GBps for limit in topology.limits], dtype=np.float64)
    member = np.zeros((links, links + len(limits)), dtype=np.bool_)
    member[np.arange(links), np.arange(links)] = True
    for number, limit in enumerate(topology.limits):
        member[list(limit.links), links + number] = True
    uses = np.zeros((len(program.messages), links + len(limits)), dtype=np.bool_)
    overhead_ps, latency_ps = np.zeros(len(uses)), np.zeros(len(uses))
    for message in program.messages:
        on = list(schedule.routes.links(int(schedule.route[message.transfer])))
        uses[message.tag] = member[on].any(axis=0)
        overhead_ps[message.tag] = topology.link_overhead_ps[on].max(initial=0)
        latency_ps[message.tag] = topology.link_latency_ps[on].sum()
    capacity = np.concatenate((topology.link_GBps, limits)) * 1e9
    return _MessageCosts(uses, capacity, overhead_ps * 1e-12, latency_ps * 1e-12)
