"""Proved lower bounds: one module per family of bounds. No schedule, with any chunking, finishes earlier."""
