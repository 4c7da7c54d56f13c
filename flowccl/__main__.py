"""`python -m flowccl` is the command line."""

import sys

from flowccl.cli import main

sys.exit(main())
