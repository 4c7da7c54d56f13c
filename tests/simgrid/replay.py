"""Replay messages as flows in SimGrid; runs in the Python that has SimGrid's bindings, not in that of flowccl.

Reads a JSON value from the standard input: `links`, the bandwidth of each link in GB/s, and `messages`, each with

    links    the links that it crosses
    bytes    what crosses them
    after    messages that must have arrived before it begins
    behind   messages whose last byte must have left before it begins
    order    messages whose last byte must have left before its first byte leaves
    turn     messages that must have led before it begins to lead
    lead_us  the time from its begin until its first byte leaves
    then_us  the time from its last byte until it has arrived: latency, signal, and work at the receiver

Writes the arrival of each message in microseconds. Links have no latency in SimGrid, which would share them by latency
instead of equally. One second of SimGrid stands for a microsecond, because its clock is precise to 1e-9 s.
"""

import json
import sys

from simgrid import Actor, Comm, Engine, LinkInRoute, NetZone, Semaphore, this_actor

CONFIG = (  # CM02 without factors: bandwidths are those of the links, shared max-min fairly
    "--cfg=network/model:CM02",
    "--cfg=network/TCP-gamma:0",
    "--cfg=network/latency-factor:1",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/weight-S:0",
    "--cfg=network/crosstraffic:0",
    "--log=root.thres:error",
)
STEPS = {"after": "arrived", "behind": "left", "turn": "led", "order": "left"}  # what is waited for: a step


class Steps:
    """Lets messages wait for the steps of other messages."""

    def __init__(self, messages: list) -> None:
        self.waiting = {step: [0] * len(messages) for step in STEPS.values()}
        for message in messages:
            for name, step in STEPS.items():
                for other in message[name]:
                    self.waiting[step][other] += 1
        self.signs = {step: [Semaphore(0) for _ in messages] for step in STEPS.values()}

    def wait(self, message: dict, *names: str) -> None:
        """Wait for some of the things that a message waits for."""
        for name in names:
            for other in message[name]:
                self.signs[STEPS[name]][other].acquire()

    def done(self, step: str, number: int) -> None:
        """Tell all messages that wait for a step of a message."""
        for _ in range(self.waiting[step][number]):
            self.signs[step][number].release()


def main() -> None:
    """Run the replay and write the arrivals."""
    case = json.load(sys.stdin)
    engine = Engine(["replay", *CONFIG])
    zone = NetZone.create_full_zone("zone")
    links = [zone.create_link(f"link{n}", GBps * 1000).set_latency(0).seal() for n, GBps in enumerate(case["links"])]
    ends = []
    for n, message in enumerate(case["messages"]):  # a pair of hosts for each message: its route is its own
        a, b = zone.create_host(f"a{n}", 1e9).seal(), zone.create_host(f"b{n}", 1e9).seal()
        zone.add_route(a.netpoint, b.netpoint, None, None, [LinkInRoute(links[k]) for k in message["links"]], False)
        ends.append((a, b))
    zone.seal()
    steps, arrival = Steps(case["messages"]), [0.0] * len(ends)

    def send(n: int) -> None:
        message = case["messages"][n]
        steps.wait(message, "after", "behind", "turn")
        this_actor.sleep_for(message["lead_us"])
        steps.done("led", n)
        steps.wait(message, "order")
        Comm.sendto(*ends[n], message["bytes"])
        steps.done("left", n)
        this_actor.sleep_for(message["then_us"])
        arrival[n] = Engine.clock
        steps.done("arrived", n)

    for n in range(len(ends)):
        Actor.create(f"send{n}", ends[n][0], send, n)
    engine.run()
    json.dump(arrival, sys.stdout)


if __name__ == "__main__":
    main()
