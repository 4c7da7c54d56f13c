"""Schedules: the transfer table, timing, transforms and files."""
