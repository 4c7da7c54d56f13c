"""Runtimes: what each of them can run, and what a message costs there."""
