"""How a schedule is carried out on a runtime: its threadblocks, in groups, and its protocol."""

from dataclasses import dataclass

from flowccl.errors import InputError
from flowccl.runtimes.profiles import RuntimeProfile


@dataclass(frozen=True, slots=True)
class Execution:
    """The part of a GPU that a schedule uses on a runtime.

    A GPU uses at most `sms` threadblocks. They form groups of `width`: a group carries one message at a time, each of
    its threadblocks an equal part of the bytes. What arrives is worked on by `receivers` groups together, the first of
    which has a number that `receivers` divides. Messages over a NIC are issued by the proxy thread of the GPU;
    `posters` threadblocks hand them to it. With protocol "LL", messages inside a host travel as packets. A threadblock
    repeats its operations `loops` times, each time with the next part of every chunk; then a group has one threadblock.
    """

    profile: RuntimeProfile
    sms: int
    width: int = 1
    posters: int = 0
    protocol: str = "Simple"
    loops: int = 1
    receivers: int = 1

    def __post_init__(self) -> None:
        if self.loops > 1 and (self.width > 1 or self.receivers > 1 or self.packets):
            raise InputError("threadblocks that repeat their operations work alone, and do not send packets")
        if self.receivers > 1 and self.packets:
            raise InputError("packets are read by one group of threadblocks")
        if self.sms < 1 or self.width < 1 or self.receivers < 1 or self.posters < 0 or self.groups < self.receivers:
            raise InputError(
                f"{self.sms} threadblocks are too few for a group of {self.slots} and {self.posters} that post to the "
                "NIC"
            )

    @property
    def groups(self) -> int:
        """Number of groups of threadblocks of a GPU."""
        return (self.sms - self.posters) // self.width

    @property
    def slots(self) -> int:
        """The parts of each chunk that threadblocks divide: as many as work on what arrives."""
        return self.width * self.receivers

    @property
    def most_together(self) -> int:
        """The most messages that one operation reduces into what a GPU has."""
        limits = self.profile.limits
        return 1 if limits is None else limits.operands - 1

    @property
    def packets(self) -> bool:
        """Whether messages inside a host travel as packets."""
        return self.protocol == "LL"
