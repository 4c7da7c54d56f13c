"""`flowccl explain`: why a schedule ends when it ends, and what faster links would save."""

import argparse

from flowccl.commands.parser import JSON, Commands, add_command
from flowccl.commands.parts import print_result

_HELP = f"""
flowccl explain FILE [--json]

say why a schedule ends when it ends, and what faster links would save

Print the critical path of a schedule: the chain of transfers that ends last, and what each of them
waited for. Then print the links on it, and the time that 10 % more bandwidth would save with the same
transfers in the same order. (`flowccl advise` says what the best schedule would gain.)

options:
  FILE  a schedule file written by `flowccl synth`
  {JSON}

examples:
  flowccl explain ag.json
  flowccl explain ag.json --json
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _explain)


def _explain(options: argparse.Namespace) -> int:
    from flowccl.explain import describe, explain
    from flowccl.schedule.files import load_schedule

    explanation = explain(load_schedule(options.file))
    print_result(options, explanation.to_json(), describe(explanation))
    return 0
