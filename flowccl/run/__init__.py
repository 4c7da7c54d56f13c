"""On real data."""
