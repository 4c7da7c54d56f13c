"""The judge: is the schedule right, and how far from the best is it? Never imports methods or solver."""
