"""Logs of real jobs: readers of many formats, one table of calls, and the audit of a job on a machine."""

from flowccl.jobs.calls import Calls, Group, LogSource
from flowccl.jobs.reading import Logs, read_file, read_logs

__all__ = ["Calls", "Group", "LogSource", "Logs", "read_file", "read_logs"]
