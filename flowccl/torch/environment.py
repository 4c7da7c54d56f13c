"""The environment variables with which a job uses flowccl; see docs/torch.md."""

import logging
import os
from dataclasses import dataclass
from functools import lru_cache

CATALOG = "FLOWCCL_CATALOG"
LOG = "FLOWCCL_LOG"
MACHINE = "FLOWCCL_MACHINE"
ANY_MACHINE = "any"
_LEVELS = {"off": logging.CRITICAL + 1, "warning": logging.WARNING, "info": logging.INFO}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for: folders of catalogs, the level of the log, and the machine of the job."""

    catalogs: tuple[str, ...]
    log: str
    machine: str

    @classmethod
    def read(cls) -> "Settings":
        """Return the settings of this process; relative folders count from where it was started."""
        folders = [os.path.abspath(name) for name in os.environ.get(CATALOG, "").split(os.pathsep) if name]
        log, machine = os.environ.get(LOG, "").strip().lower(), os.environ.get(MACHINE, "").strip()
        return cls(tuple(folders), log or "warning", machine)


@lru_cache(maxsize=1)
def job_settings() -> Settings:
    """Return the settings of this job, read once: programs may change their folder before they make a group."""
    return Settings.read()


def is_set() -> bool:
    """Whether a catalog is given."""
    return bool(os.environ.get(CATALOG))


def start_log(settings: Settings) -> None:
    """Let the logger of flowccl write to standard error as the settings say, unless the program has set it up."""
    log = logging.getLogger("flowccl.torch")
    level = _LEVELS.get(settings.log)
    if level is None:
        log.warning("flowccl: %s=%s: choose one of %s", LOG, settings.log, ", ".join(_LEVELS))
        return
    log.setLevel(level)
    if level == logging.INFO and not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.propagate = False
