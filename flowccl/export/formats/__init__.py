"""File formats of runtimes and simulators: writers and readers."""
