"""Everything flowccl raises on purpose.

FlowcclError
├── InputError            what the caller gave is wrong; the message names it and the fix (exit code 2)
│   ├── TopologyError     a machine that makes no sense
│   ├── DemandError       a collective that makes no sense, or not on this machine
│   ├── ScheduleError     a schedule that does not fit its machine or its demand
│   └── FileError         a file that cannot be read, parsed or written
├── InvalidScheduleError  a schedule was judged, and violates the rules (exit code 1)
└── NothingFoundError     the time was over before there was any schedule (exit code 3)
"""


class FlowcclError(Exception):
    """Base of all errors that flowccl raises on purpose."""


class InputError(FlowcclError):
    """What the caller gave is wrong."""


class TopologyError(InputError):
    """A machine that makes no sense."""


class DemandError(InputError):
    """A collective that makes no sense, or not on this machine."""


class ScheduleError(InputError):
    """A schedule that does not fit its machine or its demand."""


class FileError(InputError):
    """A file that cannot be read, parsed or written."""


class InvalidScheduleError(FlowcclError):
    """A schedule was judged and violates the rules."""


class NothingFoundError(FlowcclError):
    """The time was over before there was any schedule."""
