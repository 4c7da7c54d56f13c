"""Execution of plans by MSCCL++ on CUDA GPUs: one process per rank, every element checked."""
