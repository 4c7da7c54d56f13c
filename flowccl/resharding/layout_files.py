"""Read and write layouts as JSON; docs/reshard.md describes the format, layout.schema.json defines it."""

import re
from pathlib import Path
from typing import Any

from flowccl.demand.files import check_header
from flowccl.demand.groups import parse_ranks
from flowccl.errors import DemandError, InputError
from flowccl.files import read_json, write_json
from flowccl.resharding.layout import DTYPE_BYTES, Layout, Mesh, Placement, TensorLayout, TensorRange
from flowccl.topology.fields import check_keys, entry_count, show, text_field

FORMAT = "flowccl-layout"
VERSION = 1
MAX_FILE_BYTES = 2_000_000_000  # uncompressed
MAX_TENSORS = 2**20
_MAX_RANKS = 2**20
_KEYS = ("$schema", "format", "version", "name", "meshes", "tensors")
_MESH_KEYS = ("shape", "ranks")
_TENSOR_KEYS = ("name", "count", "shape", "dtype", "element_bytes", "mesh", "placements", "ranges")
_PLACEMENT = re.compile(r"(?:(Shard|StridedShard)\(\s*(\d{1,9})\s*(?:,\s*(\d{1,9})\s*)?\)|Replicate(?:\(\))?)")


def load_layout(path: str | Path) -> Layout:
    """Return the layout in a JSON file (.json or .json.gz)."""
    return layout_from_json(read_json(path, MAX_FILE_BYTES), str(path))


def save_layout(layout: Layout, path: str | Path) -> None:
    """Write a layout as JSON; compressed if the name ends in .gz."""
    write_json(path, layout_to_json(layout))


def layout_from_json(value: Any, name: str = "layout") -> Layout:
    """Return the layout in a JSON value; `name` is the file name for error messages."""
    try:
        check_header(value, FORMAT, VERSION)
        check_keys(value, "", _KEYS, {"tensors": '[{"name": "w", ...}]'})
        meshes = _meshes(value.get("meshes", {}))
        rows = value["tensors"]
        if not isinstance(rows, list) or not rows:
            raise DemandError(f"tensors: must be a list of one or more tensors, got {show(rows)}")
        tensors: list[TensorLayout] = []
        for number, row in enumerate(rows):
            tensors += _tensors(row, f"tensors[{number}]", meshes)
            if len(tensors) > MAX_TENSORS:
                raise DemandError(f"tensors: more than {MAX_TENSORS:,} tensors")
        return Layout(tuple(tensors), text_field(value.get("name", ""), "", "name"))
    except InputError as error:
        raise DemandError(f"{name}: {error}") from None


def layout_to_json(layout: Layout) -> dict[str, Any]:
    """Return a layout as a JSON value."""
    meshes: dict[Mesh, str] = {}
    rows = [_tensor_to_json(tensor, meshes) for tensor in layout.tensors]
    table = {label: {"shape": list(mesh.shape), "ranks": list(mesh.ranks)} for mesh, label in meshes.items()}
    named = {"name": layout.name} if layout.name else {}
    return {"format": FORMAT, "version": VERSION, **named, "meshes": table, "tensors": rows}


def placement_from_text(text: Any, place: str) -> Placement:
    """Return the placement in "Shard(0)", "Replicate" or "StridedShard(0, 4)"."""
    found = _PLACEMENT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None or (found[1] == "Shard" and found[3]) or (found[1] == "StridedShard" and not found[3]):
        raise DemandError(f"{place}: must be Shard(0), Replicate or StridedShard(0, 4), got {show(text)}")
    if found[1] is None:
        return Placement()
    split = int(found[3] or 1)
    if split < 1:
        raise DemandError(f"{place}: the second number of {text} must be at least 1")
    return Placement(int(found[2]), split)


def _tensor_to_json(tensor: TensorLayout, meshes: dict[Mesh, str]) -> dict[str, Any]:
    row: dict[str, Any] = {"name": tensor.name, "shape": list(tensor.shape)}
    row |= {"dtype": tensor.dtype} if tensor.dtype else {}
    if DTYPE_BYTES.get(tensor.dtype) != tensor.element_bytes:
        row["element_bytes"] = tensor.element_bytes
    if tensor.mesh is None:
        return row | {"ranges": [[part.rank, part.begin, part.end] for part in tensor.ranges]}
    label = meshes.setdefault(tensor.mesh, f"mesh{len(meshes)}")
    return row | {"mesh": label, "placements": [str(one) for one in tensor.placements]}


def _meshes(value: Any) -> dict[str, Mesh]:
    if not isinstance(value, dict):
        raise DemandError(f"meshes: must be an object of meshes by name, got {show(value)}")
    result = {}
    for label, row in value.items():
        place = f"meshes.{label}"
        check_keys(row, place, _MESH_KEYS, {"ranks": "[0, 1]"})
        ranks = _ranks(row["ranks"], f"{place}.ranks")
        shape = _whole_numbers(row.get("shape", [len(ranks)]), f"{place}.shape")
        try:
            result[label] = Mesh(shape, ranks)
        except DemandError as error:
            raise DemandError(f"{place}: {error}") from None
    return result


def _tensors(row: Any, place: str, meshes: dict[str, Mesh]) -> list[TensorLayout]:
    """The tensors of one entry: one, or as many as its "count" says."""
    check_keys(row, place, _TENSOR_KEYS, {"name": '"w"', "shape": "[1024, 1024]"})
    if not isinstance(row["name"], str) or not row["name"]:
        raise DemandError(f"{place}: name must be a non-empty string, got {show(row['name'])}")
    name = text_field(row["name"], place, "name")
    count = entry_count(row, place, ("name",), MAX_TENSORS, f"count must be at most {MAX_TENSORS:,}")
    shape = _whole_numbers(row["shape"], f"{place}.shape")
    dtype, size = _element(row, place)
    if ("mesh" in row) == ("ranges" in row):
        raise DemandError(f"{place}: give either mesh and placements, or ranges")
    mesh, placements = _placed(row, place, meshes) if "mesh" in row else (None, ())
    ranges = _ranges(row["ranges"], f"{place}.ranges") if "ranges" in row else ()
    first = TensorLayout(name.replace("{}", "0") if count else name, shape, size, dtype, mesh, placements, ranges)
    more = range(1, count or 1)
    return [first] + [
        TensorLayout(name.replace("{}", str(k)), shape, size, dtype, mesh, placements, ranges) for k in more
    ]


def _placed(row: dict[str, Any], place: str, meshes: dict[str, Mesh]) -> tuple[Mesh, tuple[Placement, ...]]:
    if row["mesh"] not in meshes:
        known = ", ".join(meshes) or "none"
        raise DemandError(f"{place}: there is no mesh {show(row['mesh'])}; the meshes are {known}")
    listed = row.get("placements")
    if not isinstance(listed, list):
        raise DemandError(f'{place}: placements must be a list such as ["Shard(0)"], got {show(listed)}')
    read = [placement_from_text(text, f"{place}.placements[{n}]") for n, text in enumerate(listed)]
    return meshes[row["mesh"]], tuple(read)


def _element(row: dict[str, Any], place: str) -> tuple[str, int]:
    """The dtype and the bytes of an element."""
    dtype = text_field(row.get("dtype", ""), place, "dtype").removeprefix("torch.")
    size = row.get("element_bytes", DTYPE_BYTES.get(dtype))
    if size is None:
        known = f"dtype {show(dtype)} is unknown; give element_bytes too" if dtype else "give dtype or element_bytes"
        raise DemandError(f"{place}: {known}")
    if type(size) is not int or not 1 <= size <= 2**20:
        raise DemandError(f"{place}: element_bytes must be a whole number of at least 1, got {show(size)}")
    if DTYPE_BYTES.get(dtype, size) != size:
        raise DemandError(f"{place}: an element of {dtype} has {DTYPE_BYTES[dtype]} bytes, not {size}")
    return dtype, size


def _ranges(rows: Any, place: str) -> tuple[TensorRange, ...]:
    if not isinstance(rows, list) or not rows:
        raise DemandError(f"{place}: must be a list of [rank, begin, end], got {show(rows)}")
    result = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != 3:
            raise DemandError(f"{place}[{number}]: must be [rank, begin, end] in bytes, got {show(row)}")
        result.append(TensorRange(*_whole_numbers(row, f"{place}[{number}]")))
    return tuple(result)


def _ranks(value: Any, place: str) -> tuple[int, ...]:
    if isinstance(value, str):
        return parse_ranks(value, _MAX_RANKS, place)
    ranks = _whole_numbers(value, place)
    if not ranks:
        raise DemandError(f"{place}: needs at least one rank")
    if max(ranks) >= _MAX_RANKS:
        raise DemandError(f"{place}: rank {max(ranks)} is beyond {_MAX_RANKS - 1}, the largest rank")
    return ranks


def _whole_numbers(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise DemandError(f"{place}: must be a list of whole numbers, got {show(value)}")
    for number, entry in enumerate(value):
        if type(entry) is not int or not 0 <= entry <= 2**60:
            raise DemandError(f"{place}[{number}]: must be a whole number of at least 0, got {show(entry)}")
    return tuple(value)
