"""`python -m benchmarks NAME ...` runs benchmarks/NAME.py (dashes become underscores)."""

import sys
from importlib import import_module

NAMES = {
    "clusters": "clusters of today, whole and with faults, compared with textbook algorithms",
    "runtime": "schedules for MSCCL++ in its clock, compared with textbook algorithms and their programs",
    "unseen": "gaps and relations on clusters drawn from seeds",
    "quality": "gaps of auto on real and random machines, compared with published results and baselines",
    "ablation": "what leaving a method out of auto costs",
    "sensitivity": "what half and twice of each tuned number change",
    "speed": "seconds to the first schedule and to gaps of 10, 5, 2 and 1 %",
    "scale": "seconds, memory and gaps on 64 to 512 GPUs and more: whole, with a fault, for a runtime",
    "first-schedules": "first schedules on meshes with random bandwidths, 64 to 1,024 GPUs",
    "teccl-tables": "tables 3, 7 and 8 and the DGX2 results of TE-CCL, compared with milp, lp and astar",
    "tables": "stored results as Markdown, for docs/benchmarks.md",
    "collectives": "gaps of auto for all collectives on seven machines",
    "taccl": "finishes and synthesis times of TACCL, compared with taccl, milp and auto",
    "reshard": "weights between layouts, compared with the lower bound and with baselines",
    "moe": "plans of mixture-of-experts alltoallv: planning time, gaps, baselines",
    "audit": "time and memory of an audit of a million calls, in CSV, JSON lines and Chrome JSON",
    "calibration": "measured allreduces of MSCCL++ and NCCL, beside the clock, the bound and plans",
    "thesis": "fluid optima of DGX A100 clusters, compared with the tables of the thesis",
}


def main() -> int:
    """Run one benchmark and return its exit code."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        print("usage: python -m benchmarks NAME [--help]\n")
        for name, about in NAMES.items():
            print(f"  {name:<14} {about}")
        return 0 if len(sys.argv) < 2 else 2
    code: int = import_module("benchmarks." + sys.argv[1].replace("-", "_")).main(sys.argv[2:])
    return code


if __name__ == "__main__":
    sys.exit(main())
