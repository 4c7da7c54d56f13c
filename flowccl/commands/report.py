"""`flowccl report`: a schedule, or several side by side, as one page for the browser."""

import argparse
import os
from pathlib import Path

from flowccl.commands.parts import Commands
from flowccl.commands.terminal import LiveLine
from flowccl.errors import InputError


def add(commands: Commands) -> None:
    """Add the command and its options."""
    report = commands.add_parser(
        "report",
        help="write a page for the browser that shows a schedule",
        usage="flowccl report FILE [FILE ...] [--out report.html] [--runtimes] [--open]",
        description=(
            "Write one HTML file that shows a schedule: the machine, the timeline with its critical path, a time\n"
            "slider, the use of links and why they are idle, and what faster links would save. The file works\n"
            "offline. Several schedules for one machine are compared on one time axis. Of a catalog, it shows which\n"
            "plan serves which size, and the time by size beside the lower bound and the library.\n"
            "\nNeeds Bokeh: pip install flowccl[report]."
        ),
        epilog=(
            "examples:\n  flowccl report ag.json --open\n  flowccl report ring.json ag.json --out compare.html\n"
            "  flowccl report plans --out plans.html      a catalog: time by size"
        ),
    )
    report.add_argument("schedule", metavar="FILE", nargs="+", help="schedule files, or the folder of a catalog")
    report.add_argument("--out", metavar="FILE", help=".html file (default: named after the first schedule)")
    report.add_argument(
        "--runtimes",
        action="store_true",
        help="say which runtimes load a large schedule too, and its time there (about 1 s per 1000 transfers)",
    )
    report.add_argument("--open", action="store_true", help="open the page in the browser")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    from flowccl.files import write_bytes
    from flowccl.report.figures import bokeh_modules
    from flowccl.report.page import report_html
    from flowccl.schedule.files import load_schedule

    out = Path(options.out or Path(options.schedule[0]).with_suffix("").with_suffix(".html").name)
    _check_out(out)
    bokeh_modules()
    line = LiveLine()
    try:
        line.phase("reading")
        if Path(options.schedule[0]).is_dir():
            write_bytes(out, _catalog_page(options.schedule).encode())
        else:
            schedules = [load_schedule(name) for name in options.schedule]
            names = _names(options.schedule)
            page = report_html(schedules, names=names, runtimes=options.runtimes, progress=line.phase)
            write_bytes(out, page.encode())
    finally:
        line.clear()
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
