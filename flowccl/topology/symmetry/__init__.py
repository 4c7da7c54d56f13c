"""Symmetry of machines: automorphisms, groups that act freely or regularly on the GPUs, and their orbits."""
