"""The portfolio behind method `auto`: which method to try with how many chunks, for how long, and when to stop."""
