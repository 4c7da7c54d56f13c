"""The commands of the command line: one module per command or per group of related commands.

The function `add` of each module adds a command with its options and help text, and sets `run`: the function that
executes the command, prints its output and returns the exit code.
"""
