"""The errors that flowccl raises.

FlowcclError
├── InputError            the input is wrong; the message names the mistake and the fix (exit code 2)
│   ├── TopologyError     an invalid machine
│   ├── DemandError       an invalid demand, or a demand that the machine cannot serve
│   ├── ScheduleError     a schedule that does not match its machine or its demand
│   └── FileError         a file that cannot be read, parsed or written
├── InvalidScheduleError  the verifier found violations in a schedule (exit code 1)
└── NothingFoundError     no schedule was found within the time limit (exit code 3)
"""


class FlowcclError(Exception):
    """Base class of all errors that flowccl raises."""


class InputError(FlowcclError):
    """The input is wrong."""


class TopologyError(InputError):
    """An invalid machine."""


class DemandError(InputError):
    """An invalid demand, or a demand that the machine cannot serve."""


class ScheduleError(InputError):
    """A schedule that does not match its machine or its demand."""


class FileError(InputError):
    """A file that cannot be read, parsed or written."""


class InvalidScheduleError(FlowcclError):
    """The verifier found violations in a schedule."""


class NothingFoundError(FlowcclError):
    """No schedule was found within the time limit."""
