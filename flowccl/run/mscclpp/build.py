"""Building the library that calls MSCCL++'s executor, from the source folder in MSCCLPP_SOURCE, with nvcc.

The library is built once for each combination of sources, GPU architecture and compiler, in the user's cache folder.
It needs nvcc and the header nlohmann/json.hpp; libnuma is used where its header is found. Extra folders for headers
and libraries are given as for gcc: CPATH, LIBRARY_PATH, LD_LIBRARY_PATH.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from flowccl.errors import FlowcclError, InputError

log = logging.getLogger(__name__)

LIBRARY = "libflowccl_mscclpp.so"
_BRIDGE = Path(__file__).with_name("bridge.cc")
_CODE = (".cc", ".cpp", ".cu")
_STANDARD = re.compile(r"^\s*set\(CMAKE_CXX_STANDARD (\d+)\)", re.MULTILINE)
_NEWEST_STANDARD = "20"  # of C++, where the source does not say which it needs


@dataclass(frozen=True, slots=True)
class Source:
    """A source folder of MSCCL++: its version, and the folder with the files of its core."""

    folder: Path
    version: str
    core: Path

    def code(self) -> list[Path]:
        """Return the files of the core, in the order of their names."""
        files = [path for path in self.core.rglob("*") if path.suffix in _CODE and "ext" not in path.parts]
        return sorted(files)

    def standard(self) -> str:
        """Return the C++ standard that this version is written in: 17 up to the release 0.9.0, 20 after it."""
        file = self.folder / "CMakeLists.txt"
        found = _STANDARD.search(file.read_text()) if file.is_file() else None
        return found[1] if found else _NEWEST_STANDARD


def find_source() -> Source:
    """Return the source folder that MSCCLPP_SOURCE names; raise InputError if there is none."""
    given = os.environ.get("MSCCLPP_SOURCE")
    if not given:
        raise InputError(
            "MSCCL++ not found: install its Python package (pip install . in a clone of microsoft/mscclpp), or set "
            "MSCCLPP_SOURCE to such a clone, from which flowccl builds what it needs with nvcc"
        )
    folder = Path(given).expanduser()
    if not (folder / "VERSION").is_file() or not (folder / "include" / "mscclpp" / "executor.hpp").is_file():
        raise InputError(f"MSCCLPP_SOURCE={given}: not a source folder of MSCCL++ (no VERSION or no executor.hpp)")
    core = folder / "src" / "core"
    return Source(folder, (folder / "VERSION").read_text().strip(), core if core.is_dir() else folder / "src")


def library(source: Source, architecture: int) -> Path:
    """Return the library for a GPU architecture (90 for sm_90); build it first if it is not in the cache."""
    nvcc = find_nvcc()
    folder = cache_folder() / f"mscclpp-{source.version}-sm{architecture}-{_fingerprint(source, nvcc)}"
    made = folder / LIBRARY
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as work:
            _Build(source, architecture, nvcc, Path(work)).run().replace(made)
    return made


def cache_folder() -> Path:
    """Return the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowccl"


def find_nvcc() -> str:
    """Return the CUDA compiler on the PATH, or that of CUDA_HOME."""
    beside = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "nvcc"
    found = shutil.which("nvcc") or (str(beside) if beside.exists() else None)
    if found is None:
        raise InputError("nvcc not found: building from MSCCLPP_SOURCE needs the CUDA toolkit; set CUDA_HOME or PATH")
    return found


def _fingerprint(source: Source, nvcc: str) -> str:
    """Return a digest of everything that decides what the library contains."""
    digest = hashlib.sha256()
    headers = sorted((source.folder / "include").rglob("*.hpp"))
    for path in [_BRIDGE, *source.code(), *headers]:
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(subprocess.run([nvcc, "--version"], capture_output=True, check=False).stdout)
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class _Build:
    """One build in a folder of its own."""

    source: Source
    architecture: int
    nvcc: str
    work: Path

    def run(self) -> Path:
        self._write_version()
        has_numa = self._has_header("numa.h")
        if not self._has_header("nlohmann/json.hpp"):
            raise InputError(
                "building MSCCL++ needs the header nlohmann/json.hpp (Debian: nlohmann-json3-dev); "
                "set CPATH to the folder that contains nlohmann/"
            )
        files = [path for path in self.source.code() if has_numa or path.stem != "numa"] + [_BRIDGE]
        log.warning("building MSCCL++ %s for sm_%d (%d files)", self.source.version, self.architecture, len(files))
        flags = [] if has_numa else ["-DFLOWCCL_WITHOUT_NUMA"]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda item: self._compile(item[0], item[1], flags), enumerate(files)))
        made = self.work / LIBRARY
        libraries = ["-lcuda", "-lnvidia-ml", "-lpthread", "-ldl", *(["-lnuma"] if has_numa else [])]
        self._run([self.nvcc, "-shared", *map(str, objects), "-o", str(made), *libraries], made.name)
        return made

    def _write_version(self) -> None:
        """Write the header that MSCCL++'s own build generates."""
        template = self.source.folder / "include" / "mscclpp" / "version.hpp.in"
        if not template.exists():
            return
        text = template.read_text()
        numbers = dict(zip(("MAJOR", "MINOR", "PATCH"), self.source.version.split("."), strict=False))
        for name, value in {**numbers, "VERSION": self.source.version}.items():
            text = text.replace(f"@MSCCLPP_{name}@", value)
        target = self.work / "include" / "mscclpp" / "version.hpp"
        target.parent.mkdir(parents=True)
        target.write_text(text.replace("@GIT_HASH@", "source"))

    def _has_header(self, name: str) -> bool:
        command = [self.nvcc, "-x", "c++", "-E", "-", "-o", os.devnull]
        text = f"#include <{name}>\n"
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False).returncode == 0

    def _compile(self, number: int, path: Path, flags: list[str]) -> Path:
        folders = [self.work / "include", self.source.folder / "include", self.source.core / "include"]
        made = self.work / f"{number}.o"
        command = [self.nvcc, f"-std=c++{self.source.standard()}", "-O2", "-w", f"-arch=sm_{self.architecture}"]
        command += ["-Xcompiler", "-fPIC", "-DMSCCLPP_USE_CUDA", *flags, *(f"-I{folder}" for folder in folders)]
        self._run([*command, "-x", "cu", "-c", str(path), "-o", str(made)], path.name)
        return made

    def _run(self, command: list[str], what: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in (done.stderr + done.stdout).splitlines() if "error" in line.lower()]
            raise FlowcclError(f"building MSCCL++: nvcc failed on {what}: {(lines or ['no message'])[0].strip()}")
