"""Measuring a machine: probes between ranks, and the links and limits that explain them. See docs/profile.md."""
