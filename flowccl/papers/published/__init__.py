"""Published results of other synthesizers, as tables for comparison.

teccl_table8_ndv2x2.csv       TE-CCL paper, table 8: two NDv2 hosts, TE-CCL and TACCL
teccl_shipped_dgx2x2.csv      results that the TE-CCL authors ship for two DGX2 hosts
teccl_replayed_dgx2x2.csv     the shipped allgather schedules replayed in continuous time (with all latencies)
teccl_small_tables.csv        TE-CCL paper, tables 3 and 7: DGX1, with SCCL and MSCCL
thesis_chapter6_dgx_a100.csv  Shapley's thesis, tables 6.3 to 6.11: DGX A100 clusters, with ForestColl's times
"""

import csv
from importlib.resources import files

from flowccl.units import parse_bytes


def table(name: str) -> list[dict[str, str]]:
    """Return the rows of one CSV file, each a dict by column name."""
    text = files("flowccl.papers.published").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def published_us(machine: str, collective: str) -> dict[str, dict[int, float]]:
    """Return the best published completion times in us, by synthesizer and size in bytes; empty if there are none."""
    result: dict[str, dict[int, float]] = {}

    def add(synthesizer: str, buffer: str, finish_us: str) -> None:
        if finish_us:
            sizes = result.setdefault(synthesizer, {})
            size = parse_bytes(buffer)
            sizes[size] = min(sizes.get(size, float("inf")), float(finish_us))

    if machine == "ndv2:2":
        for row in table("teccl_table8_ndv2x2"):
            if row["collective"] == collective:
                add("TE-CCL", row["buffer"], row["finish_us"])
                add("TACCL", row["buffer"], row["taccl_finish_us"])
    if machine == "dgx2:2":
        replayed = table("teccl_replayed_dgx2x2")
        rows = replayed if collective == "allgather" else table("teccl_shipped_dgx2x2")
        for row in rows:
            if row["collective"] == collective:
                add("TE-CCL", row["buffer"], row.get("finish_replayed_us") or row["finish_us"])
    return result
