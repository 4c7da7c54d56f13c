"""The documentation is true: Python code runs, commands parse, links lead somewhere, docs/api.md is up to date."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from flowccl.cli import _Parsers

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^ *```python\n(.*?)^ *```", re.MULTILINE | re.DOTALL)  # "python notest" is not run
COMMAND = re.compile(r"^(?:    |\$ )(?:\.venv/bin/)?flowccl (.*)$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON.search(text(page))], ids=name)
def test_python_code_runs(page, tmp_path):
    """The blocks of a page are one program."""
    script = tmp_path / "blocks.py"
    script.write_text("\n".join(dedent(block) for block in PYTHON.findall(text(page))), encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_parse():
    """A comment follows after two spaces; lines with "..." are not commands."""
    parser, refused = _Parsers().whole, []
    commands = [(name(page), line) for page in PAGES for line in COMMAND.findall(text(page)) if "..." not in line]
    assert len(commands) > 20
    for page, line in commands:
        words = shlex.split(re.split(r"\s{2,}|\s#", line)[0])
        try:
            parser.parse_args(words)
        except SystemExit as end:
            if end.code:
                refused.append(f"{page}: flowccl {line}")
    assert refused == []


def test_links_lead_somewhere():
    broken = []
    for page in PAGES:
        for link in LINK.findall(text(page)):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if "://" in link:
                continue
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{name(page)}: {link}")
    assert broken == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text(page))]
    return {heading.strip().replace(" ", "-") for heading in headings}


def test_readme_lists_every_page_and_example():
    readme = text(ROOT / "README.md")
    pages = [path for path in (ROOT / "docs").glob("*.md") if f"({name(path)})" not in readme]
    examples = [path for path in (ROOT / "examples").glob("*.py") if f"({name(path)})" not in readme]
    assert pages + examples == []


def test_api_reference_is_up_to_date():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from make_api import PAGE, page
    finally:
        sys.path.pop(0)
    assert text(PAGE) == page(), "run `make docs`"
