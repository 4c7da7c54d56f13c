"""Jobs: the files through which `flowccl run` hands its work to the processes that it starts, and gets rows back."""

import dataclasses
import json
from pathlib import Path

from flowccl.files import read_json, write_json
from flowccl.run.measure import CallTiming, Row, RunOptions
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.schedule.schedule import Schedule

_MAX_BYTES = 10_000_000


def write_job(schedule: Schedule, options: RunOptions, folder: Path) -> tuple[Path, Path]:
    """Write a job to a folder; return the job's file, and the file to which rank 0 will write the rows."""
    save_schedule(schedule, folder / "schedule.json")
    write_json(folder / "job.json", dataclasses.asdict(options))
    return folder / "job.json", folder / "rows.json"


def read_job(job: str) -> tuple[Schedule, RunOptions]:
    """Return the schedule and the options of a job."""
    given = read_json(job, _MAX_BYTES)
    options = RunOptions(tuple(given["sizes"]), tuple(given["dtypes"]), given["inplace"], given["iterations"])
    return load_schedule(Path(job).with_name("schedule.json")), options


def write_rows(job: str, rows: list[Row]) -> None:
    """Write the rows of a job for the process that started it; rank 0 does this."""
    write_json(Path(job).with_name("rows.json"), [dataclasses.asdict(row) for row in rows])


def read_rows(path: Path) -> list[Row]:
    """Return the rows that rank 0 has written."""
    rows = json.loads(path.read_text())
    for row in rows:
        for key in ("out_of_place", "in_place"):
            row[key] = None if row[key] is None else CallTiming(**row[key])
    return [Row(**row) for row in rows]
