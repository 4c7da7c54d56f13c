"""The plans of the GPU tests: synthesized and exported where they are missing.

`python -m tests.gpu.plans` makes all of them, for a machine with a GPU that has only numpy; with the argument `torch`,
only those of the tests with PyTorch. FLOWCCL_TEST_PLANS names the folder; the default is build/gpu-plans.
"""

import itertools
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import InputError
from flowccl.export import ExportOptions, export
from flowccl.export.program import lower_program
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.files import load_schedule
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.generation.looping import repeated
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine as built_in
from flowccl.units import parse_bytes

MACHINES = ("dgx1", "dgx_h100:1:nvls=false", "hypercube:3", "rail:2x4")
COLLECTIVES = ("allgather", "allreduce", "alltoall", "reduce_scatter", "broadcast")
SIZES = ("64KiB", "1MiB", "16MiB", "256MiB")
SMALL = ("8KiB", "32KiB")
STUDIED = ("allreduce", "allgather")
CHUNKS = (1, 2, 4, 8, 16)
PLACES = ("out", "in")
TYPES = ("float32", "float16", "bfloat16", "int32")
FOLDER = Path(os.environ.get("FLOWCCL_TEST_PLANS", "build/gpu-plans"))
SEARCH = ("--for", "mscclpp", "--sms", "16", "--time-limit", "2", "--quiet")


@dataclass(frozen=True)
class GpuCase:
    """A plan, its protocol, and the type of its elements."""

    machine: str
    collective: str
    size: str
    place: str
    dtype: str
    protocol: str = "auto"
    chunks: int | None = None

    @property
    def name(self) -> str:
        """The name of the plan's file, without its ending."""
        ending = "" if self.protocol == "auto" else f"-{self.protocol.lower()}"
        return f"{self._problem}-{self.place}{ending}"

    @property
    def _problem(self) -> str:
        chunks = "" if self.chunks is None else f" {self.chunks}"
        return re.sub(r"[^a-z0-9]+", "-", f"{self.machine} {self.collective} {self.size}{chunks}".lower())

    def schedule(self, *, chunks: int | None = None) -> Path:
        """The schedule; synthesized first if it is missing, or again if it must have some number of chunks."""
        path = FOLDER / f"{self._problem}-schedule.json"
        if chunks is not None or not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            chunks = chunks or self.chunks
            words = [] if chunks is None else ["--chunks", str(chunks)]
            search = [*SEARCH, *words, "--out", str(path)]
            assert main(["synth", self.machine, self.collective, "--size", self.size, *search]) == 0
        return path

    def plan(self) -> Path:
        """The plan; made first if it is missing."""
        path = FOLDER / f"{self.name}.json"
        if not path.exists():
            options = ExportOptions(inplace=self.place == "in", protocol=self.protocol, sms=16)
            try:
                export(load_schedule(self.schedule()), "mscclpp", path, options)
            except InputError:  # in place, a plan may have more operations, and so more threadblocks
                export(load_schedule(self.schedule(chunks=2)), "mscclpp", path, options)
        return path


SANITIZED = (
    GpuCase("full:2", "allgather", "64KiB", "out", "float32"),
    GpuCase("full:2", "allreduce", "64KiB", "in", "float32"),
    GpuCase("rail:2x1", "allgather", "64KiB", "out", "float32"),  # between hosts: port channels
    GpuCase("full:2", "allreduce", "64KiB", "in", "float32", "LL"),  # packets
)
TWO_HOPS = GpuCase("ring:4", "broadcast", "16MiB", "out", "float32", chunks=1)
PYTORCH = (
    GpuCase("full:4", "allreduce", "1MiB", "in", "float32"),
    GpuCase("full:4", "allreduce", "64KiB", "in", "float32", "LL"),
)
OTHERS = (
    TWO_HOPS,  # for a missing wait
    GpuCase("dgx1", "allgather", "1MiB", "out", "float32"),  # for broken plans
    *PYTORCH,
    *SANITIZED,
)


def torch_catalog() -> Path:
    """A catalog of 4 ranks for PyTorch jobs; built first if it is missing."""
    folder = FOLDER / "torch-catalog"
    if not (folder / "catalog.json").exists():
        from flowccl.catalog.build import BuildOptions, build_catalog
        from flowccl.catalog.engine import TaskEngine

        options = BuildOptions(
            collectives=("allreduce", "allgather", "reduce_scatter"),
            low_bytes=1_024,
            high_bytes=4 << 20,
            runtime=PROFILES["mscclpp"],
            inplace=True,
            steps=2,
            sms=32,
            most=2,
        )
        build_catalog(built_in("full:4"), folder, options, TaskEngine(jobs=1))
    return folder


def study() -> list[Path]:
    """In-place plans with 1 to 16 chunks per block; made first if they are missing."""
    paths = []
    for machine, name, chunks in itertools.product(("ring:8", "hypercube:3", "full:8", "dgx1"), STUDIED, CHUNKS):
        path = FOLDER / f"study-{re.sub('[^a-z0-9]+', '-', machine)}-{name}-{chunks}.json"
        schedule = path.with_suffix(".schedule.json")
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            search = ["--chunks", str(chunks), "--method", "greedy", "--steps", "3", "--quiet", "--out", str(schedule)]
            assert main(["synth", machine, name, "--size", "16MiB", *search]) == 0
            export(load_schedule(schedule), "mscclpp", path, ExportOptions(inplace=True))
        paths.append(path)
    return paths


def _place(machine: str, name: str, number: int) -> str:
    """Where a plan has its result: in place, unless MSCCL++ plans cannot."""
    refused = name == "broadcast" or (name == "alltoall" and machine.startswith("rail"))
    return "out" if refused else PLACES[number % 2]


def covering() -> list[GpuCase]:
    """Cases with every machine, collective and size together; places and types so that every pair of values occurs."""
    cases = []
    for number, (machine, name, size) in enumerate(itertools.product(MACHINES, COLLECTIVES, SIZES)):
        place = _place(machine, name, number + number // 4 + number // 20)
        dtype = TYPES[(number + number // 4 + number // 20) // 2 % 4 if number % 2 else (number + number // 4) % 4]
        cases.append(GpuCase(machine, name, size, place, dtype))
    return cases


def packets() -> list[GpuCase]:
    """Small sizes on the machines of one host, for which the search chooses packets; all pairs as in `covering`."""
    cases = []
    for number, (machine, name, size) in enumerate(itertools.product(MACHINES[:3], COLLECTIVES, SMALL)):
        place = _place(machine, name, number + number // 2 + number // 10)
        cases.append(GpuCase(machine, name, size, place, TYPES[(number + number // 10) % 4]))
    return cases


@dataclass(frozen=True)
class LoopedCase:
    """A plan whose threadblocks repeat their operations, each time with the next of some parts of every chunk."""

    machine: str
    collective: str
    size: str
    place: str
    dtype: str
    loops: int
    sms: int

    def plan(self) -> Path:
        """The plan; made first if it is missing."""
        name = re.sub(r"[^a-z0-9]+", "-", f"{self.machine} {self.collective} {self.size} {self.loops}".lower())
        path = FOLDER / f"looped-{name}-{self.place}.json"
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            topology, profile = used_by(built_in(self.machine), PROFILES["mscclpp"]), PROFILES["mscclpp"]
            demand = collective(self.collective, topology.num_gpus, parse_bytes(self.size))
            method = "direct" if self.collective == "alltoall" else "greedy"
            found = next(filter(None, load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0))))
            schedule = repeated(found, profile, self.sms, self.loops)
            assert schedule is not None, self
            path.write_bytes(lower_program(schedule, inplace=self.place == "in").data)
        return path


def looped() -> list[LoopedCase]:
    """Plans with loops, inside a host and between hosts, in every collective, both places and all types."""
    cases = []
    machines = (("full:4", 32), ("rail:2x2", 32), ("ring:4", 32))
    for number, ((name, sms), what) in enumerate(itertools.product(machines, COLLECTIVES)):
        size, loops = ("4MiB", "16MiB", "64MiB")[number % 3], (4, 16)[number % 2]
        cases.append(LoopedCase(name, what, size, _place(name, what, number), TYPES[number % 4], loops, sms))
    return cases


@dataclass(frozen=True)
class DirectCase:
    """A plan in which every GPU sends to all others at once, with groups of `width` threadblocks.

    `receivers` of these groups reduce together.
    """

    machine: str
    collective: str
    size: str
    place: str
    dtype: str
    protocol: str
    width: int = 1
    receivers: int = 1

    def plan(self) -> Path:
        """The plan; made first if it is missing."""
        words = f"{self.machine} {self.collective} {self.size} {self.protocol} {self.width} {self.receivers}".lower()
        path = FOLDER / f"direct-{re.sub(r'[^a-z0-9]+', '-', words)}-{self.place}.json"
        if not path.exists():
            FOLDER.mkdir(parents=True, exist_ok=True)
            topology = used_by(built_in(self.machine), PROFILES["mscclpp"])
            demand = collective(self.collective, topology.num_gpus, parse_bytes(self.size))
            found = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0)))
            profile, groups = PROFILES["mscclpp"], {"protocol": self.protocol, "receivers": self.receivers}
            schedule = Engine(found, Execution(profile, 16, self.width, **groups)).run()
            assert schedule is not None, self
            path.write_bytes(lower_program(schedule, inplace=self.place == "in").data)
        return path


def reduced() -> list[DirectCase]:
    """Plans that reduce three and seven messages at once, with and without packets, in all types."""
    cases = []
    for number, (name, what, protocol) in enumerate(
        itertools.product(("full:4", "full:8"), ("reduce_scatter", "allreduce"), ("Simple", "LL"))
    ):
        for place in PLACES:
            cases.append(DirectCase(name, what, ("64KiB", "4MiB")[number % 2], place, TYPES[len(cases) % 4], protocol))
    return cases


def wide() -> list[DirectCase]:
    """Plans whose blocks only groups of five or three threadblocks divide, in every collective and all types."""
    sizes = (("4MB", 5), ("4718592", 3))  # 4 MB are 62,500 units of 16 bytes for each of 4 GPUs; the other 73,728
    cases = []
    for number, (what, (size, width)) in enumerate(itertools.product(COLLECTIVES, sizes)):
        place, dtype = _place("full:4", what, number), TYPES[number % 4]
        cases.append(DirectCase("full:4", what, size, place, dtype, "Simple", width))
    return cases


def together() -> list[DirectCase]:
    """Plans in which two or four groups of one or two threadblocks reduce together, in all types."""
    shapes = itertools.product(("reduce_scatter", "allreduce"), ("64KiB", "1MiB"), ((1, 4), (2, 2), (2, 4)))
    return [
        DirectCase("full:4", what, size, PLACES[number % 2], TYPES[number % 4], "Simple", width, receivers)
        for number, (what, size, (width, receivers)) in enumerate(shapes)
    ]


def possible_pairs() -> set[tuple[str, str]]:
    """The collectives and places that MSCCL++ plans have on some machine."""
    return {(name, place) for name in COLLECTIVES for place in PLACES} - {("broadcast", "in")}


if __name__ == "__main__":
    only_torch = sys.argv[1:] == ["torch"]
    for case in PYTORCH if only_torch else (*covering(), *packets(), *OTHERS):
        print(case.plan(), flush=True)
    print(torch_catalog(), flush=True)
    if not only_torch:
        study()
