"""Pictures of machines, schedules and comparisons. They need matplotlib (the extra `plot`)."""
