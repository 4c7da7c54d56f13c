"""The catalog: plans, rules that say which plan serves which call, and times by size."""

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

from flowccl.errors import InputError
from flowccl.units import format_bytes

_RANGE = re.compile(r"\[(0|[1-9][0-9]{0,18}),(0|[1-9][0-9]{0,18})\)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
ANY_TYPE = "any"
"""The element type of rules whose plans serve all types: chunks are multiples of 16 bytes."""


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The sizes from `low` up to, but not including, `high`; written "[low,high)"."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise InputError(f"bytes [{self.low},{self.high}): the range is empty")

    @classmethod
    def parse(cls, text: str) -> "ByteRange":
        """Return the range in a text such as "[1000,64000)"."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise InputError(f'bytes: write a range such as "[1000,64000)", got {text!r}')
        return cls(int(match[1]), int(match[2]))

    def __contains__(self, size_bytes: int) -> bool:
        return self.low <= size_bytes < self.high

    def __str__(self) -> str:
        return f"[{self.low},{self.high})"


@dataclass(frozen=True, slots=True)
class MachineId:
    """The machine of a catalog: its file, fingerprint, GPUs, and GPUs per host (0: hosts of different sizes)."""

    name: str
    fingerprint: str
    ranks: int
    ranks_per_host: int
    file: str = "machine.json"


@dataclass(frozen=True, slots=True)
class CatalogPlan:
    """A plan: the file that the runtime loads, and the schedule that the file was made from.

    It serves sizes that are multiples of `alignment_bytes`. `program_us` is the predicted time at `size_bytes`, the
    size that the plan was made for, and `measured_us` the measured one where the plan was run.
    """

    name: str
    collective: str
    size_bytes: int
    chunks: int
    alignment_bytes: int
    format: str
    file: str
    sha256: str
    schedule: str
    schedule_sha256: str
    program_us: float
    lower_bound_us: float
    measured_us: float | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InputError(f"plan {self.name!r}: a name has letters, digits, '.', '_' and '-'")
        for key in ("file", "schedule"):
            if not all(_NAME.fullmatch(part) for part in getattr(self, key).split("/")):
                raise InputError(
                    f"plan {self.name}: {key} must be a path inside the folder, got {getattr(self, key)!r}"
                )
        for key in ("sha256", "schedule_sha256"):
            if not _SHA256.fullmatch(getattr(self, key)):
                raise InputError(f"plan {self.name}: {key} must be 64 hexadecimal digits")

    def serves(self, size_bytes: int) -> bool:
        """Whether the plan can run a call of this size."""
        return size_bytes % self.alignment_bytes == 0


@dataclass(frozen=True, slots=True)
class Call:
    """A collective call: what rules look at. `fingerprint` is that of the machine, None where it is not known."""

    collective: str
    size_bytes: int
    ranks: int
    inplace: bool
    dtype: str = ANY_TYPE
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """Calls that match all fields run `plan`; None means the library's own algorithm, for the given reason."""

    collective: str
    ranks: int
    ranks_per_host: int
    inplace: bool
    bytes: ByteRange
    fingerprint: str
    plan: str | None
    reason: str
    dtype: str = ANY_TYPE

    @property
    def key(self) -> tuple[str, int, bool, str]:
        """What a call must equal: collective, ranks, in place, type."""
        return (self.collective, self.ranks, self.inplace, self.dtype)


@dataclass(frozen=True, slots=True)
class TimePoint:
    """Predicted times of a collective at one size: its plan's, the library's (None: unknown), and the lower bound."""

    collective: str
    size_bytes: int
    plan: str | None
    program_us: float | None
    library_us: float | None
    lower_bound_us: float | None


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """What a catalog was built with; equal settings on equal machines give equal catalogs."""

    low_bytes: int
    high_bytes: int
    steps: int
    seed: int
    tolerance: float


@dataclass(frozen=True)
class Catalog:
    """Plans and rules for one machine and one runtime. Calls that no rule matches run the library's own algorithm."""

    machine: MachineId
    runtime: str
    settings: BuildSettings
    plans: tuple[CatalogPlan, ...]
    rules: tuple[Rule, ...]
    times: tuple[TimePoint, ...] = ()
    costs: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, names in (
            ("plans are named", [plan.name for plan in self.plans]),
            ("plans have the file", [plan.file for plan in self.plans]),
        ):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise InputError(f"two {what} {twice[0]}")
        for number, rule in enumerate(self.rules):
            self._check_rule(f"rule {number}", rule)
        for rows in self.by_key().values():
            for a, b in pairwise(rows):
                if b.bytes.low < a.bytes.high:
                    raise InputError(f"two rules of {a.collective} overlap: bytes {a.bytes} and {b.bytes}")

    def _check_rule(self, place: str, rule: Rule) -> None:
        machine = self.machine
        if rule.fingerprint != machine.fingerprint:
            raise InputError(f"{place}: is for the machine {rule.fingerprint}, the catalog for {machine.fingerprint}")
        if (rule.ranks, rule.ranks_per_host) != (machine.ranks, machine.ranks_per_host):
            raise InputError(f"{place}: ranks and ranks_per_host must be those of the machine")
        if rule.plan is not None:
            plan = self.plan(rule.plan)
            if plan.collective != rule.collective:
                raise InputError(f"{place}: is for {rule.collective}, but its plan {plan.name} for {plan.collective}")

    def plan(self, name: str) -> CatalogPlan:
        """Return the plan with a name."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        raise InputError(f"there is no plan {name!r} in the catalog")

    def by_key(self) -> dict[tuple[str, int, bool, str], list[Rule]]:
        """Return the rules of each kind of call, in the order of their sizes."""
        found: dict[tuple[str, int, bool, str], list[Rule]] = {}
        for rule in sorted(self.rules, key=lambda rule: (rule.key, rule.bytes)):
            found.setdefault(rule.key, []).append(rule)
        return found

    @property
    def collectives(self) -> tuple[str, ...]:
        """The collectives that rules name, in their order."""
        return tuple(dict.fromkeys(rule.collective for rule in self.rules))


def holes(catalog: Catalog) -> list[str]:
    """Return a sentence for every range of sizes between two rules that no rule covers."""
    found = []
    for rows in catalog.by_key().values():
        for a, b in pairwise(rows):
            if b.bytes.low > a.bytes.high:
                gap = f"{format_bytes(a.bytes.high)} to {format_bytes(b.bytes.low)}"
                found.append(f"{a.collective}: no rule covers {gap} (bytes {ByteRange(a.bytes.high, b.bytes.low)})")
    return found
