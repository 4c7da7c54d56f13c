"""Execution of schedules on real data: numpy, torch.distributed and MPI."""
