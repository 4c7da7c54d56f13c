"""Lowering: from a schedule to the program of a runtime, with threadblocks, channels and buffers."""
