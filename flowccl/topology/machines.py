"""`machine("ndv2:2")` builds a machine from its name; `MACHINES` is the table of all names.

A name is the kind of machine, its sizes and then any options, separated by colons: "torus:8x8", "dgx_a100:4:all",
"ring:8:bandwidth=50GB/s:latency=0.5us". The options are the keyword arguments of the function that builds the machine,
without the unit suffix.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from flowccl.errors import InputError, TopologyError
from flowccl.topology.builders import (
    dragonfly,
    fat_tree,
    full,
    hypercube,
    line,
    machine_options,
    mesh,
    option_name,
    rail,
    ring,
    star,
    torus,
)
from flowccl.topology.hardware import (
    dgx1,
    dgx2,
    dgx_a100,
    dgx_h100,
    dgx_h200,
    gb200_nvl72,
    hgx_b200,
    internal1,
    internal2,
    mi250,
    mi300x,
    ndv2,
)
from flowccl.topology.topology import Topology
from flowccl.units import parse_GBps, parse_us


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineKind:
    """One row of `MACHINES`: the function that builds the machine, and the syntax of its name for users.

    `sizes` is the regular expression for the text after the name; its groups are the function's positional arguments.
    """

    build: Callable[..., Topology]
    pattern: str
    sizes: str
    about: str
    example: str


_N = "([0-9]{1,18})"
_NVSWITCH_HOSTS = "8 GPUs per host, NVSwitch copies and reduces; rails"
_GRID = f"{_N}x{_N}(?:x{_N})?"


def _row(build: Callable[..., Topology], pattern: str, sizes: str, example: str, about: str) -> MachineKind:
    return MachineKind(build=build, pattern=pattern, sizes=sizes, about=about, example=example)


MACHINES: dict[str, MachineKind] = {
    "dgx1": _row(dgx1, "dgx1", "", "dgx1", "8 GPUs in an NVLink mesh of 50 and 25 GB/s"),
    "ndv2": _row(ndv2, "ndv2:HOSTS", _N, "ndv2:2", "Azure NDv2: DGX1 meshes, one 12.5 GB/s NIC per host"),
    "dgx2": _row(dgx2, "dgx2:HOSTS", _N, "dgx2:2", "16 GPUs per host on a multicast NVSwitch, eight 12.5 GB/s NICs"),
    "mi250": _row(
        mi250, "mi250:HOSTS", _N, "mi250:2", "16 AMD GPUs per host in an xGMI mesh, leaf switches and a spine"
    ),
    "dgx_a100": _row(
        dgx_a100,
        "dgx_a100:HOSTS[:nvlink|no-nvlink|all]",
        f"{_N}(?::(nvlink|no-nvlink|all))?",
        "dgx_a100:4:all",
        "8 GPUs per host on NVSwitch, PCIe or both; rails",
    ),
    "dgx_h100": _row(dgx_h100, "dgx_h100:HOSTS", _N, "dgx_h100:4", _NVSWITCH_HOSTS),
    "dgx_h200": _row(dgx_h200, "dgx_h200:HOSTS", _N, "dgx_h200:4", _NVSWITCH_HOSTS),
    "hgx_b200": _row(hgx_b200, "hgx_b200:HOSTS", _N, "hgx_b200:4", _NVSWITCH_HOSTS),
    "mi300x": _row(
        mi300x, "mi300x:HOSTS", _N, "mi300x:4:network=fat-tree", "8 AMD GPUs per host in a full xGMI mesh; rails"
    ),
    "gb200_nvl72": _row(
        gb200_nvl72, "gb200_nvl72:RACKS", _N, "gb200_nvl72:2", "72 GPUs per rack, NVSwitch copies and reduces; rails"
    ),
    "internal1": _row(
        internal1, "internal1:HOSTS", _N, "internal1:2", "stand-in for TE-CCL's Internal 1: rings of 4, one switch"
    ),
    "internal2": _row(
        internal2, "internal2:HOSTS", _N, "internal2:2", "stand-in for TE-CCL's Internal 2: pairs, one switch"
    ),
    "ring": _row(ring, "ring:GPUS", _N, "ring:8", "a ring"),
    "line": _row(line, "line:GPUS", _N, "line:8", "a line"),
    "full": _row(full, "full:GPUS", _N, "full:8", "a link between every two GPUs"),
    "star": _row(star, "star:GPUS", _N, "star:8:copies=true", "one switch"),
    "mesh": _row(mesh, "mesh:AxB[xC]", _GRID, "mesh:4x4", "a grid of 2 or 3 dimensions"),
    "torus": _row(torus, "torus:AxB[xC]", _GRID, "torus:8x8", "a grid that wraps around in every dimension"),
    "hypercube": _row(hypercube, "hypercube:DIMENSIONS", _N, "hypercube:4", "2^DIMENSIONS GPUs"),
    "fat_tree": _row(fat_tree, "fat_tree:PORTS", _N, "fat_tree:4", "PORTS^3 / 4 GPUs, three levels of switches"),
    "dragonfly": _row(
        dragonfly,
        "dragonfly:SWITCHES:GPUS:GLOBAL_LINKS",
        f"{_N}:{_N}:{_N}",
        "dragonfly:4:2:2",
        "SWITCHES * GLOBAL_LINKS + 1 groups of switches",
    ),
    "rail": _row(rail, "rail:HOSTSxGPUS", f"{_N}x{_N}", "rail:4x8", "one switch per host, one rail per GPU index"),
}


def machine(text: str) -> Topology:
    """Return the machine with this name. The text becomes the name of the topology."""
    text = text.strip()
    head, *rest = text.split(":")
    kind = MACHINES.get(head)
    if kind is None:
        raise TopologyError(f'there is no machine "{head}"{nearest(head, MACHINES)}; "flowccl machines" lists all')
    first_option = next((place for place, part in enumerate(rest) if "=" in part), len(rest))
    sizes, options = rest[:first_option], rest[first_option:]
    match = re.fullmatch(kind.sizes, ":".join(sizes))
    if match is None:
        example = f", for example {kind.example}" if kind.example != kind.pattern else ", which has no size"
        raise TopologyError(f'machine "{text}": write {kind.pattern}{example}')
    arguments = [int(part) if part.isdigit() else part for part in match.groups() if part is not None]
    topology = kind.build(*arguments, **_options(text, kind, options))
    return topology if topology.name == text else replace(topology, name=text)


def _options(text: str, kind: MachineKind, options: list[str]) -> dict[str, float | bool | str]:
    """Return keyword arguments from ["bandwidth=50GB/s", ...]."""
    known = {option_name(parameter): parameter for parameter in machine_options(kind.build)}
    result: dict[str, float | bool | str] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise TopologyError(f'machine "{text}": "{option}" comes after an option; options come last, as key=value')
        if key not in known:
            names = f"its options are {', '.join(known)}" if known else "it has no options"
            raise TopologyError(f'machine "{text}": there is no option "{key}"; {names}')
        if known[key] in result:
            raise TopologyError(f'machine "{text}": option "{key}" is given twice')
        try:
            result[known[key]] = _value(kind, known[key], value)
        except InputError as error:
            raise TopologyError(f'machine "{text}": {error}') from None
    return result


def _value(kind: MachineKind, parameter: str, value: str) -> float | bool | str:
    if parameter.endswith("_GBps"):
        return parse_GBps(value, option_name(parameter))
    if parameter.endswith("_us"):
        return parse_us(value, option_name(parameter))
    if isinstance(machine_options(kind.build)[parameter], bool):
        if value not in ("true", "false"):
            raise TopologyError(f'{parameter} must be true or false, got "{value}"')
        return value == "true"
    if isinstance(machine_options(kind.build)[parameter], int | float):
        try:
            return int(value) if value.isdecimal() else float(value)
        except ValueError:
            raise TopologyError(f'{parameter} must be a number, got "{value}"') from None
    return value


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown word: `; nearest is "ring"`, or "" if no known word is similar.

    Of equally similar words, the first is named. Only the first 10,000 known words are compared.
    """
    matcher = SequenceMatcher(b=word.lower()[:100])
    best, score = "", 0.5
    for _, other in zip(range(10_000), known, strict=False):
        matcher.set_seq1(other.lower()[:100])
        if matcher.real_quick_ratio() > score and matcher.quick_ratio() > score and matcher.ratio() > score:
            best, score = other, matcher.ratio()
    return f'; nearest is "{best}"' if best else ""
