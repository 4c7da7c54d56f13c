"""`flowccl explain`: why a schedule ends when it ends, and what faster links would save."""

import argparse
import json

from flowccl.commands.parts import Commands
from flowccl.commands.terminal import print_text


def add(commands: Commands) -> None:
    """Add the command and its options."""
    explain = commands.add_parser(
        "explain",
        help="say why a schedule ends when it ends, and what faster links would save",
        description=(
            "Print the critical path of a schedule: the chain of transfers that ends last, and what each of them\n"
            "waited for. Then print the links on it, and the time that 10 % more bandwidth would save with the same\n"
            "transfers in the same order. (`flowccl advise` says what the best schedule would gain.)"
        ),
        epilog="examples:\n  flowccl explain ag.json\n  flowccl explain ag.json --json",
    )
    explain.add_argument("schedule", metavar="FILE", help="a schedule file written by `flowccl synth`")
    explain.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    explain.set_defaults(run=_explain)


def _explain(options: argparse.Namespace) -> int:
    from flowccl.explain import describe, explain
    from flowccl.schedule.files import load_schedule

    explanation = explain(load_schedule(options.schedule))
    if options.json:
        print(json.dumps(explanation.to_json()))
    else:
        print_text(describe(explanation))
    return 0
