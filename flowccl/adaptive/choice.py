"""Adaptive selection at run time: the schedule of each call by the times that algorithms take on the job."""

import logging
from pathlib import Path
from statistics import median
from typing import Any

from flowccl.adaptive.diagnosis import describe
from flowccl.adaptive.run_time import PlanChooser
from flowccl.adaptive.size_class import AdaptiveParams, Alarm, Share, SizeClass
from flowccl.errors import InputError
from flowccl.files import read_json, write_json
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes
from flowccl.wording import percent

log = logging.getLogger("flowccl.torch")
LIBRARY = "library"
FORMAT = "flowccl-selection"
_MAX_FILE_BYTES = 50_000_000
_RECENT = 4  # calls of another size class that show whether it is slow too
_Key = tuple[str, int]  # collective, and the power of two up to twice of which sizes are of one class


class AdaptiveChooser:
    """Chooses among the plan of a call's rule, the plans of the rules beside it and the library, by measured times.

    A size class is a collective with the sizes from a power of two to the next one. `share` gives all ranks the largest
    of their times once in `agree_every` calls of a class, so all ranks choose alike. `alarms` has the drift that was
    found. `state` is a file of `save`; it counts only with the catalog that it was saved with.
    """

    def __init__(
        self, chooser: PlanChooser, share: Share, state: str | Path | None = None, params: AdaptiveParams | None = None
    ) -> None:
        self.chooser, self.share, self.params = chooser, share, params or AdaptiveParams()
        self.uses = chooser.uses
        self.classes: dict[_Key, SizeClass] = {}
        self.alarms: list[str] = []
        self._recent: dict[_Key, list[tuple[int, float]]] = {}
        self._current: _Key | None = None
        self._saved = self._shared_state(None if state is None else Path(state))

    def _shared_state(self, path: Path | None) -> dict[_Key, Any]:
        """The classes in a file; none where the ranks have different ones, since they would choose differently."""
        if path is None:
            return {}
        digest = ""
        rows: dict[_Key, Any] = {}
        try:
            if path.exists():
                digest, rows = _read(path)
        except InputError as error:
            log.warning("flowccl: rank %d: %s", self.chooser.rank, error)
        version = self.chooser.version
        known = bool(rows) and version is not None and digest == version.digest
        number = float(sum(one["calls"] for one in rows.values())) if known else -1.0
        highest, lowest = self.share([number, -number])
        return rows if known and highest == -lowest else {}

    def __call__(self, collective: str, size_bytes: int) -> Schedule | None:
        """Return the schedule of a call; None: the library."""
        if self.chooser.count_call():  # other plans have the names now
            self.classes, self._recent, self._saved = {}, {}, {}
        choice, version = self.chooser.selected(collective, size_bytes), self.chooser.version
        self._current = None
        if version is None or choice.rule is None:
            return self.chooser.counted(collective, None, choice.reason)
        key = (collective, 1 << (size_bytes.bit_length() - 1))
        if key not in self.classes:
            self.classes[key] = self._new(key, size_bytes)
        name = self.classes[key].current
        if name != LIBRARY and not version.selector.catalog.plan(name).serves(size_bytes):
            return self.chooser.counted(collective, None, f"{name} does not serve {size_bytes:,} B")
        self._current = key
        return self.chooser.counted(collective, None if name == LIBRARY else name, "measured times")

    def finished(self, time_us: float) -> None:
        """Count the time of the call that was chosen last."""
        if self._current is None:
            return
        key, one = self._current, self.classes[self._current]
        self._current = None
        self._recent[key] = [*self._recent.get(key, []), (self.chooser.calls, time_us)][-_RECENT:]
        alarm = one.add(time_us)
        if alarm is not None:
            self.alarms.append(self._words(key, alarm))
            if self.chooser.rank == 0:
                log.warning("flowccl: %s", self.alarms[-1])

    def save(self, path: str | Path) -> None:
        """Write what was learnt, for `state` of a later job."""
        version = self.chooser.version
        rows = [[*key, one.to_json()] for key, one in sorted(self.classes.items())]
        write_json(Path(path), {"format": FORMAT, "catalog": version.digest if version else "", "classes": rows})

    def _new(self, key: _Key, size_bytes: int) -> SizeClass:
        version = self.chooser.version
        assert version is not None
        predicted = version.selector.predicted_us(key[0], size_bytes)
        if key in self._saved:
            made = SizeClass.from_json(self._saved[key], self.share, self.params)
            if {one.name for one in made.algorithms} == {*predicted}:
                return made
        return SizeClass(predicted, self.share, self.params)

    def _words(self, key: _Key, alarm: Alarm) -> str:
        """The alarm with the link that explains it and the slowdowns of other classes at the same time."""
        version = self.chooser.version
        calls = f"{key[0]} of {format_bytes(key[1])} to {format_bytes(2 * key[1])}"
        if version is None or alarm.algorithm not in version.schedules:
            return f"{calls}: {alarm}"
        observed = [(version.schedules[alarm.algorithm], alarm.now_us / alarm.usual_us)]
        since = self.chooser.calls - self.classes[key].calls + alarm.since_call
        for other, rows in self._recent.items():
            one = self.classes[other]
            usual = one.usual_us
            if other != key and usual is not None and one.current in version.schedules and rows[0][0] >= since:
                observed.append((version.schedules[one.current], max(median(us for _, us in rows) / usual, 1.0)))
        place, words = describe(observed)
        later = percent(alarm.now_us / alarm.usual_us - 1)
        return f"{place} slow since call {alarm.since_call:,} of {calls}: {later} later than before; {words}"


def _read(path: Path) -> tuple[str, dict[_Key, Any]]:
    value = read_json(path, _MAX_FILE_BYTES)
    try:
        if value["format"] != FORMAT:
            raise ValueError
        rows = {(str(name), int(low)): row for name, low, row in value["classes"]}
        for row in rows.values():
            SizeClass.from_json(row, lambda times: times)
        return str(value["catalog"]), rows
    except (KeyError, TypeError, ValueError, InputError):
        raise InputError(f"{path}: is no state of the adaptive selection; remove it to start anew") from None
