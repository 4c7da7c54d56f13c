"""One word per thing, and the field's word: names that the code base has given up do not come back."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.source import MODULES, PACKAGE, ROOT, nodes, text

INSTEAD = {  # word in a name: the word to use
    "floor": "bound",
    "judge": "verify",
    "sums": "reductions",
    "summed": "reduced",
    "way": "path or route",
    "setup": "overhead",
    "hold": "busy",
    "woven": "lns",
    "weave": "insert",
    "tear": "remove",
    "torn": "removed",
    "park": "right_shift",
    "folded": "quotient",
    "fold": "quotient",
    "routed": "reroute",
    "entwined": "inserted",
    "apart": "one_shot",
    "mirrored": "symmetric",
    "classic": "baseline",
    "finer": "refine or subdivide",
    "ladder": "chunk_counts",
    "rung": "chunk_count",
    "climber": "arm",
    "climb": "raise",
    "hurry": "fast_track",
    "hurries": "fast_track",
    "needs": "commodities",
    "timed": "time_expanded",
    "candidates": "cut_families",
    "shares": "fractions",
    "settle": "generate_serial",
    "retime": "left_shift",
    "joined": "concatenated",
    "circle": "cycle",
    "drawn": "random",
    "house": "package",
    "room": "space or capacity",
    "who": "the thing itself",
    "whom": "the thing itself",
    "everybody": "all_gpus",
}
SENTENCES = (  # constructions that were given up: who or what does something must be named
    "Alignment is not asked for",
    "is said to be good",
    "There and back: else",
    "B is none",
    "beside NCCL?",
    "later by the estimate",
)
NAMES = {"told", "mine", "fro", "_OTHERS"}  # say what it is
TEXT = re.compile(r"\b(who|whom|floor|judge)\b", re.IGNORECASE)
NUMERIC_FLOOR = re.compile(r"(np|math)\.floor")


@cache
def names(path: Path) -> set[str]:
    """Every name that a module defines or uses, and the module's own."""
    found = {path.stem}
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
    return found - {"floor"} if NUMERIC_FLOOR.search(text(path)) else found


@cache
def words(name: str) -> set[str]:
    """The words of a name, in singular and as written."""
    parts = [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
    return {*parts, *(part.removesuffix("s") for part in parts)}


def test_no_name_uses_a_word_that_was_given_up() -> None:
    found = defaultdict(set)
    for path in MODULES:
        for name in names(path):
            for word in words(name) & INSTEAD.keys():
                found[path.relative_to(ROOT).as_posix()].add(f"{name} (say {INSTEAD[word]})")
    assert {path: sorted(bad) for path, bad in sorted(found.items())} == {}


def test_no_name_is_a_bare_pronoun() -> None:
    found = {path.relative_to(ROOT).as_posix(): sorted(NAMES & names(path)) for path in MODULES}
    assert {path: bad for path, bad in found.items() if bad} == {}


def test_no_text_uses_a_sentence_that_was_given_up() -> None:
    texts = [*MODULES, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    found = []
    for path in texts:
        whole = " ".join(text(path).split())
        found += [f"{path.relative_to(ROOT)}: {sentence}" for sentence in SENTENCES if sentence in whole]
    assert found == []


def test_no_text_uses_a_word_that_was_given_up() -> None:
    texts = [*MODULES, *PACKAGE.rglob("*.json"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    found = []
    for path in texts:
        for number, line in enumerate(text(path).splitlines(), 1):
            if TEXT.search(line) and not NUMERIC_FLOOR.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert found == []
