"""`flowccl report`: a schedule, or several side by side, as one page for the browser."""

import argparse
import os
from pathlib import Path

from flowccl.commands.parser import Commands, add_command
from flowccl.commands.terminal import LiveLine
from flowccl.errors import InputError

_HELP = """
flowccl report FILE [FILE ...] [--out report.html] [--runtimes] [--open]

write a page for the browser that shows a schedule

Write one HTML file that shows a schedule: the machine, the timeline with its critical path, a time
slider, the use of links and why they are idle, and what faster links would save. The file works
offline. Several schedules for one machine are compared on one time axis. Of a catalog, it shows which
plan serves which size, and the time by size beside the lower bound and the library.

Needs Bokeh: pip install flowccl[report].

options:
  FILE+  schedule files, or the folder of a catalog
  --out FILE  .html file (default: named after the first schedule)
  --runtimes  say which runtimes load a large schedule too, and its time there (about 1 s per 1000 transfers)
  --open  open the page in the browser

examples:
  flowccl report ag.json --open
  flowccl report ring.json ag.json --out compare.html
  flowccl report plans --out plans.html      a catalog: time by size
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _report)


def _report(options: argparse.Namespace) -> int:
    from flowccl.files import write_bytes
    from flowccl.report.figures import bokeh_modules
    from flowccl.report.page import report_html
    from flowccl.schedule.files import load_schedule

    out = Path(options.out or Path(options.file[0]).with_suffix("").with_suffix(".html").name)
    _check_out(out)
    bokeh_modules()
    with LiveLine() as line:
        line.phase("reading")
        if Path(options.file[0]).is_dir():
            write_bytes(out, _catalog_page(options.file).encode())
        else:
            schedules = [load_schedule(name) for name in options.file]
            names = _names(options.file)
            page = report_html(schedules, names=names, runtimes=options.runtimes, progress=line.phase)
            write_bytes(out, page.encode())
    print(out)
    if options.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0


def _check_out(out: Path) -> None:
    """Refuse a place that cannot be written to before the work begins."""
    if out.suffix not in (".html", ".htm"):
        raise InputError(f"--out {out}: the name must end in .html")
    if not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")
    if out.is_dir():
        raise InputError(f"--out {out}: is a folder, not a file")
    if not os.access(out.parent, os.W_OK):
        raise InputError(f"--out {out}: no permission to write to the folder {out.parent}")


def _catalog_page(files: list[str]) -> str:
    from flowccl.catalog.files import load_catalog
    from flowccl.report.catalog_page import catalog_html

    if len(files) > 1:
        raise InputError(f"{files[0]} is a folder: give one catalog, or schedule files")
    return catalog_html(load_catalog(files[0]))


def _names(files: list[str]) -> list[str]:
    """The names of the schedules: file names, or whole paths where two file names are equal."""
    short = [Path(file).name for file in files]
    return short if len(set(short)) == len(short) else list(files)
