"""Plans for MSCCL++'s NCCL library (LD_PRELOAD), which reads four files by their names and knows no selector.

The library reads `$MSCCLPP_CACHE_DIR/default` (src/ext/collectives/algorithm_collection_builder.cc of MSCCL++ 0.9). It
takes a plan whose world size and ranks per node, which belong to the name, whose collective, whose buffer mode and
whose inclusive range of sizes, which are in the file, match a call.
"""

from dataclasses import dataclass
from math import lcm, log
from pathlib import Path

from flowccl.catalog.files import FILE, chunk_alignment, load_plan_file
from flowccl.catalog.model import Catalog, Rule
from flowccl.errors import FileError, InputError
from flowccl.export.exporting import check
from flowccl.files import json_bytes, parse_json, write_bytes

FOLDER = "default"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that the library reads: the ranks for which it registers the name, and the sizes that the name says."""

    name: str
    ranks: int
    ranks_per_host: int
    low: int
    high: int


FILES = (
    NamedFile("allreduce_2nodes_1K_64K.json", 16, 8, 1 << 10, 64 << 10),
    NamedFile("allreduce_2nodes_128K_2M.json", 16, 8, 128 << 10, 2 << 20),
    NamedFile("allreduce_4nodes_1K_64K.json", 32, 8, 1 << 10, 64 << 10),
    NamedFile("allreduce_4nodes_128K_2M.json", 64, 4, 128 << 10, 2 << 20),
)
"""The last one is registered for 64 ranks, 4 per node, in MSCCL++ 0.9, although its name says 4 nodes."""


@dataclass(frozen=True, slots=True)
class NamedExport:
    """The files that were written, and a sentence for everything of the catalog that the library will not load."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...]


def write_named_files(folder: Path, catalog: Catalog, out: Path) -> NamedExport:
    """Write the plans of a catalog under the names that the library reads into `out/default`, and prove them."""
    if catalog.runtime != "mscclpp":
        raise InputError(f"MSCCL++'s library loads plans of MSCCL++; the catalog is for {catalog.runtime}")
    machine = catalog.machine
    fitting = [file for file in FILES if (file.ranks, file.ranks_per_host) == (machine.ranks, machine.ranks_per_host)]
    if not fitting:
        known = ", ".join(f"{a} ranks with {b} per host" for a, b in _shapes())
        raise InputError(
            f"MSCCL++'s library reads plans for {known}; the catalog is for {machine.ranks} with "
            f"{machine.ranks_per_host}: use `catalog export` without --to, whose module registers all plans"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: must be a new or an empty folder")
    notes, paths, used = [], [], set()
    contents = {}
    for file in fitting:
        rule = _rule_for(catalog, file)
        if rule is None or rule.plan is None:
            notes.append(f"{file.name}: not written: no plan serves allreduces of {file.low:,} to {file.high:,} B")
            continue
        data, note = _contents(folder, catalog, rule, file)
        notes.append(note)
        if data is not None:
            contents[file.name] = data
            used.add((rule.plan, file.name))
    place = out / FOLDER
    try:
        if contents:
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{place}: cannot be written: {error.strerror or error}") from None
    for name, data in contents.items():
        write_bytes(place / name, data)
        paths.append(place / name)
    return NamedExport(tuple(paths), (*notes, *_left_out(catalog, {plan for plan, _ in used})))


def is_named_folder(folder: Path) -> bool:
    """Whether a folder is one that `write_named_files` wrote, and no catalog."""
    return (folder / FOLDER).is_dir() and not (folder / FILE).exists()


def check_named_files(out: Path) -> list[str]:
    """Return everything that is wrong with the files of a folder that `write_named_files` wrote."""
    found = []
    by_name = {file.name: file for file in FILES}
    names = sorted(path.name for path in (out / FOLDER).glob("*.json"))
    if not names:
        return [f"{out / FOLDER}: has no files of MSCCL++'s library"]
    for name in names:
        if name not in by_name:
            found.append(f"{name}: MSCCL++'s library does not read this name")
            continue
        program, findings = check(out / FOLDER / name, "mscclpp")
        found += [f"{name}: {finding}" for finding in findings]
        value, file = parse_json((out / FOLDER / name).read_bytes(), name), by_name[name]
        if len(value["gpus"]) != file.ranks:
            found.append(f"{name}: has {len(value['gpus'])} ranks, the library registers it for {file.ranks}")
        if value["collective"] != "allreduce":
            found.append(f"{name}: is for {value['collective']}, its name says allreduce")
        if not file.low <= value["min_message_size"] <= value["max_message_size"] <= file.high:
            sizes = f"{value['min_message_size']:,} to {value['max_message_size']:,} B"
            found.append(f"{name}: serves {sizes}, its name says {file.low:,} to {file.high:,} B")
        unit = chunk_alignment(value)
        if value["min_message_size"] % unit or value["max_message_size"] % unit:
            found.append(f"{name}: MSCCL++ runs it for multiples of {unit:,} B, which the ends of its sizes are not")
        del program
    return found


def _shapes() -> list[tuple[int, int]]:
    return list(dict.fromkeys((file.ranks, file.ranks_per_host) for file in FILES))


def _rule_for(catalog: Catalog, file: NamedFile) -> Rule | None:
    """The rule with a plan that serves the largest part of the name's sizes, on a logarithmic scale."""

    def part(rule: Rule) -> float:
        low, high = max(rule.bytes.low, file.low), min(rule.bytes.high, file.high + 1)
        return log(high / low) if high > low else 0.0

    rules = [rule for rule in catalog.rules if rule.collective == "allreduce" and rule.plan is not None and part(rule)]
    return max(rules, key=lambda rule: (part(rule), -rule.bytes.low), default=None)


def _contents(folder: Path, catalog: Catalog, rule: Rule, file: NamedFile) -> tuple[bytes | None, str]:
    """The plan with the sizes of its rule that the name says, and a sentence about it; None: it serves none of them."""
    plan = catalog.plan(rule.plan or "")
    value = parse_json(load_plan_file(folder, plan), plan.file)
    unit = lcm(plan.alignment_bytes, chunk_alignment(value))
    low = max(rule.bytes.low, file.low, value["min_message_size"])  # a plan with packets may serve one size only
    high = min(rule.bytes.high - 1, file.high, value["max_message_size"])
    low, high = -(-low // unit) * unit, high // unit * unit
    if low > high:
        sizes = f"{value['min_message_size']:,} to {value['max_message_size']:,} B, multiples of {unit:,} B"
        return None, f"{file.name}: not written: {plan.name} serves {sizes}"
    value["min_message_size"], value["max_message_size"] = low, high
    value["name"] = file.name.removesuffix(".json")  # the executor's cache goes by the name, which must be unique
    place = "in" if rule.inplace else "out of"
    note = (
        f"{file.name}: {plan.name} serves {low:,} to {high:,} B {place} place, multiples of "
        f"{unit:,} B; MSCCL++ ends a call of another size in this range with an error"
    )
    return json_bytes(value, indent=1), note


def _left_out(catalog: Catalog, used: set[str]) -> list[str]:
    notes = []
    rest = [rule for rule in catalog.rules if rule.plan is not None and rule.plan not in used]
    if rest:
        names = ", ".join(dict.fromkeys(f"{rule.collective} {rule.bytes}" for rule in rest))
        notes.append(f"not loaded by MSCCL++'s library, which has no name for them: {names}")
    if not any(rule.inplace for rule in catalog.rules if rule.collective == "allreduce"):
        notes.append("the plans are for calls out of place; PyTorch's all_reduce is in place: build with --inplace")
    return notes
