"""Schedule generation: times for transfers, by serial generation, list scheduling and job-shop scheduling."""
