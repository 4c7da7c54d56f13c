"""The commands of the command line: one module for each, or for a few that belong together.

Each has `add`, which adds its options and the help that teaches them, and sets `run`, which does the work, prints and
returns the exit code.
"""
