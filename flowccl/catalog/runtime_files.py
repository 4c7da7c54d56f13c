"""Files of a catalog for the runtimes: a folder that the runtime loads, and a table for NCCL's tuner plugin."""

from pathlib import Path
from typing import Any

from flowccl.catalog.files import load_machine, load_plan_file
from flowccl.catalog.library import Shape, library_choice, shape_of
from flowccl.catalog.model import Catalog, Rule
from flowccl.errors import FileError, InputError
from flowccl.files import json_bytes, parse_json, write_bytes
from flowccl.runtimes.profiles import PROFILES

MODULE = "flowccl_plans.py"
TUNER = "nccl_tuner.csv"
NCCLX = "ncclx_tuner.json"
_TUNER_NAMES = {"allreduce": "allreduce", "allgather": "allgather", "reduce_scatter": "reducescatter"}
_MSCCL_MOST_FILES = 4  # algorithms that MSCCL loads


def write_runtime_files(folder: Path, catalog: Catalog, out: Path) -> list[Path]:
    """Write the files that the catalog's runtime loads into a new folder, and return them."""
    if catalog.runtime not in PROFILES or catalog.runtime == "ideal":
        raise InputError(f"a catalog for {catalog.runtime} has no files for a runtime; build it with --for")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: must be a new or an empty folder")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    contents = _mscclpp(folder, catalog) if catalog.runtime == "mscclpp" else _xml(folder, catalog)
    shape = shape_of(load_machine(folder, catalog))
    tuners = {TUNER: tuner_csv(catalog, shape).encode(), NCCLX: json_bytes(ncclx_tuner(catalog, shape), indent=1)}
    place = out if catalog.runtime == "mscclpp" else out / "plans"  # XML runtimes parse every file of their folder
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{place}: cannot be written: {error.strerror or error}") from None
    paths = {place / name: data for name, data in contents.items()} | {
        out / name: data for name, data in tuners.items()
    }
    for path, data in paths.items():
        write_bytes(path, data)
    return list(paths)


def _mscclpp(folder: Path, catalog: Catalog) -> dict[str, bytes]:
    """The plans, a module that registers them, and its table with inclusive ranges."""
    made: dict[str, bytes] = {}
    table = []
    for rule in _with_plan(catalog):
        plan = catalog.plan(rule.plan or "")
        data = load_plan_file(folder, plan)
        value = parse_json(data, plan.file)
        made[f"{plan.name}.json"] = data
        table.append(
            {
                "collective": value["collective"],
                "ranks": rule.ranks,
                "ranks_per_host": rule.ranks_per_host,
                "low": rule.bytes.low,
                "high": rule.bytes.high - 1,
                "alignment": plan.alignment_bytes,
                "name": value["name"],
                "file": f"{plan.name}.json",
            }
        )
    source = (Path(__file__).parent / "mscclpp_module.py").read_bytes()
    return made | {"plans.json": json_bytes(table, indent=1), MODULE: source}


def _xml(folder: Path, catalog: Catalog) -> dict[str, bytes]:
    """The XML files; loaders take the first one in the order of names that fits, and ranges do not overlap."""
    rules = _with_plan(catalog)
    if catalog.runtime == "msccl" and len(rules) > _MSCCL_MOST_FILES:
        raise InputError(
            f"MSCCL loads at most {_MSCCL_MOST_FILES} files, the catalog has {len(rules)} plans; "
            "build it for fewer collectives, or with --most"
        )
    plans = [catalog.plan(rule.plan or "") for rule in rules]
    return {f"{plan.name}.xml": load_plan_file(folder, plan) for plan in plans}


def _with_plan(catalog: Catalog) -> list[Rule]:
    return [rule for rule in catalog.rules if rule.plan is not None]


def tuner_csv(catalog: Catalog, shape: Shape) -> str:
    """Return the configuration of NCCL's example tuner plugin for the ranges that the library serves.

    Columns: collective, smallest and largest size (both included), algorithm, protocol, channels (-1: NCCL's choice),
    hosts, ranks.
    """
    rows = [[*row, -1, shape.hosts, shape.ranks] for row in _tuner_rows(catalog, shape)]
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def ncclx_tuner(catalog: Catalog, shape: Shape) -> dict[str, Any]:
    """Return the same table for NCCLX's built-in tuner, whose sizes are those of a rank's part: bytes over ranks."""
    rules = []
    for name, low, high, algorithm, protocol in _tuner_rows(catalog, shape):
        first, last = -(-low // shape.ranks), high // shape.ranks
        if first <= last:
            sizes: dict[str, object] = {"collective": name, "bytesPerRank": f"[{first},{last}]"}
            place = {"nNodes": shape.hosts, "nLocalRanks": shape.ranks // shape.hosts}
            rules.append({"filter": sizes | place, "config": {"algorithm": algorithm, "protocol": protocol}})
    return {"rules": rules}


def _tuner_rows(catalog: Catalog, shape: Shape) -> list[tuple[str, int, int, str, str]]:
    """The (collective, smallest size, largest size, algorithm, protocol) of the ranges that the library serves."""
    rows: list[tuple[str, int, int, str, str]] = []
    for rule in catalog.rules:
        if rule.plan is not None or rule.collective not in _TUNER_NAMES:
            continue
        low = rule.bytes.low
        while low < rule.bytes.high:
            choice, high = library_choice(shape, rule.collective, low), min(2 * max(low, 1), rule.bytes.high)
            if choice is not None:
                name = _TUNER_NAMES[rule.collective]
                row = (name, low, high - 1, choice.algorithm, choice.protocol)
                if rows and rows[-1][0] == name and rows[-1][2] == low - 1 and rows[-1][3:] == row[3:]:
                    row = (name, rows.pop()[1], high - 1, choice.algorithm, choice.protocol)
                rows.append(row)
            low = high
    return rows
