"""Schedules replayed in SimGrid (`make test-simgrid`)."""
