"""One hypothesis profile for all tests: the same examples on every run, so that CI is stable."""

from hypothesis import settings

settings.register_profile("same every time", derandomize=True, deadline=None, database=None)
settings.load_profile("same every time")
