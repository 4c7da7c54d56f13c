"""Pictures for the eye: the machine, and the timeline of a schedule. They need matplotlib (the extra `plot`)."""
