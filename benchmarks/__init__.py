"""Benchmarks: cases, peers' published numbers, reports. `python -m benchmarks` lists them."""
