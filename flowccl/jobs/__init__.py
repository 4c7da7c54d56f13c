"""Logs of real jobs: readers of many formats, one table of calls, and the audit of a job on a machine."""
