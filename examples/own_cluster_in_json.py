"""Describe a cluster in a JSON file (data/own_cluster.json), and run the command line on it.

In a shell, without the Python around it:

    flowccl show examples/data/own_cluster.json
    flowccl synth examples/data/own_cluster.json allreduce --size 1MB --out ar.json
    flowccl verify ar.json
    flowccl run ar.json --on numpy
"""

import sys
import tempfile
from pathlib import Path

from flowccl.cli import main as flowccl

CLUSTER = Path(__file__).parent / "data" / "own_cluster.json"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        schedule = str(Path(folder) / "ar.json")
        commands = (
            ["show", str(CLUSTER)],
            [
                "synth",
                str(CLUSTER),
                "allreduce",
                "--size",
                "1MB",
                "--out",
                schedule,
                "--method",
                "greedy",
                "--steps",
                "5",
            ],
            ["verify", schedule],
            ["run", schedule, "--on", "numpy", "--iterations", "1"],
        )
        for command in commands:
            print("$ flowccl", *command)
            if code := flowccl(command):
                sys.exit(code)


if __name__ == "__main__":
    main()
