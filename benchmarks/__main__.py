"""`python -m benchmarks NAME ...`: runs benchmarks/NAME.py (dashes become underscores)."""

import sys
from importlib import import_module

NAMES = {
    "quality": "gaps of auto on real and random machines, beside published results and the classics",
    "speed": "seconds to the first schedule and to 10, 5, 2 and 1 % above the floor",
    "scale": "meshes with random bandwidths, 64 to 1,024 GPUs",
    "teccl-tables": "TE-CCL's tables 3, 7 and 8 and its DGX2 results beside ours",
    "tables": "stored results as Markdown, for docs/benchmarks.md",
    "collectives": "all collectives on seven machines",
    "taccl": "TACCL's finishes and synthesis times beside method taccl, milp and auto",
    "thesis": "the fluid optima of DGX A100 clusters beside the thesis's tables",
}


def main() -> int:
    """Run one benchmark; returns the exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print("usage: python -m benchmarks NAME [--help]\n")
        for name, about in NAMES.items():
            print(f"  {name:<14} {about}")
        return 0 if len(sys.argv) < 2 else 2
    code: int = import_module("benchmarks." + sys.argv[1].replace("-", "_")).main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
