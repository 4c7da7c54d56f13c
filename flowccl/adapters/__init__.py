"""Adapters that let any method accept reductions, process groups, late data, message overheads and reduce rates."""
