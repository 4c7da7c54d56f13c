"""Benchmarks of flowccl, compared with lower bounds and published results. `python -m benchmarks` lists them."""
