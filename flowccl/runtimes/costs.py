"""What a message costs on a runtime, by kind of link."""

from dataclasses import dataclass

from flowccl.errors import InputError
from flowccl.topology.topology import LinkKind
from flowccl.units import busy_ps, us_to_ps


@dataclass(frozen=True, slots=True)
class MessageCost:
    """The cost of one message.

    `overhead_us` is the time for which a message occupies its sender and the link before its bytes flow. The sender is
    a threadblock, or with `proxy` the one CPU thread that sends all messages of a GPU. `signal_us` is the time from the
    arrival of the last byte until the receiver may use the data; it overlaps with other messages.
    """

    overhead_us: float
    signal_us: float = 0.0
    proxy: bool = False

    def __post_init__(self) -> None:
        for name in ("overhead_us", "signal_us"):
            if not 0 <= getattr(self, name) < 1e6:
                raise InputError(f"{name} must be at least 0 and below 1e6 us, got {getattr(self, name):g}")

    @property
    def overhead_ps(self) -> int:
        """`overhead_us` in picoseconds."""
        return us_to_ps(self.overhead_us)

    @property
    def signal_ps(self) -> int:
        """`signal_us` in picoseconds."""
        return us_to_ps(self.signal_us)


_FURTHER = {"reduce": 0.49, "read packets": 2 / 3}


@dataclass(frozen=True, slots=True)
class LocalCost:
    """The cost of an operation on the data of one GPU: a fixed part, and the rate of a threadblock (0: no limit)."""

    operation: str
    overhead_us: float
    GBps: float = 0.0

    def __post_init__(self) -> None:
        for name in ("overhead_us", "GBps"):
            if not 0 <= getattr(self, name) < 1e6:
                raise InputError(f"{name} must be at least 0 and below 1e6, got {getattr(self, name):g}")

    @property
    def further(self) -> float:
        """The part of the operation's time that each further source takes, where it reduces several at once.

        For reductions it is measured (docs/gpu.md). For packets it is the part of the bytes that are moved: packets are
        twice their data, and their data is written once.
        """
        return _FURTHER.get(self.operation, 1.0)

    def time_ps(self, size_bytes: int, further: int = 0) -> int:
        """Return the time of the operation on some bytes, with as many further sources of the same size."""
        if not self.GBps:
            return us_to_ps(self.overhead_us)
        more_ps = busy_ps(size_bytes, self.GBps / self.further) if further else 0
        return us_to_ps(self.overhead_us) + busy_ps(size_bytes, self.GBps) + further * more_ps


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """The cost of a message on each kind of link, and of operations on one GPU, which are free if they are not here."""

    nvlink: MessageCost
    pcie: MessageCost
    nic: MessageCost
    local: tuple[LocalCost, ...] = ()

    def operation(self, name: str) -> LocalCost:
        """The cost of an operation of a threadblock, such as "put", "copy" or "reduce"; free if it is not known."""
        return next((cost for cost in self.local if cost.operation == name), LocalCost(name, 0.0))

    def of(self, kind: LinkKind) -> MessageCost:
        """The cost on a kind of link."""
        cost: MessageCost = getattr(self, kind)
        return cost


FREE = MessageCosts(MessageCost(0.0), MessageCost(0.0), MessageCost(0.0))
"""The model of the papers: only bytes and latencies take time."""
