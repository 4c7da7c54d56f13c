"""Ranks and hosts in messages."""

from collections.abc import Sequence

from flowccl.profile.probes import ranks_of


def format_hosts(hosts: Sequence[str]) -> str:
    """Each host with its ranks."""
    return ", ".join(f"{name}: {format_ranks(ranks)}" for name, ranks in ranks_of(hosts).items())


def format_ranks(ranks: list[int]) -> str:
    """Ranks as a short list, or their number if there are many."""
    return "gpu" + ",".join(map(str, ranks)) if len(ranks) <= 8 else f"{len(ranks)} gpus"
