"""Comparisons of methods, and bottlenecks of machines."""
