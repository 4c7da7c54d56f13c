"""One hypothesis profile for all tests, so that CI is stable, and no compiling in the background."""

import os

from hypothesis import settings

os.environ["FLOWCCL_COMPILE"] = "foreground"
settings.register_profile("same every time", derandomize=True, deadline=None, database=None, max_examples=50)
settings.load_profile("same every time")
