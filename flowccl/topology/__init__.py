"""The machine: GPUs, switches, memories, and the links between them."""
