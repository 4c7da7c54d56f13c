"""The entry point that `import torch` calls (group torch.backends); it costs next to nothing and never raises.

It registers the backend "flowccl". If FLOWCCL_CATALOG is set, the process groups of this process use the catalog.
"""

import logging
from typing import Any

from flowccl.torch.environment import is_set

log = logging.getLogger("flowccl.torch")


def autoload() -> None:
    """Make flowccl known to torch; anything that fails is one line, and torch goes on without flowccl."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        if "FLOWCCL" not in dist.Backend._plugins:
            dist.Backend.register_backend("flowccl", _library, devices=["cpu", "cuda"])
        if is_set():
            from flowccl.torch.install import install

            install()
    except Exception as error:
        log.warning("flowccl: not used: %s: %s", type(error).__name__, error)


def _library(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """Return the group of the backend "flowccl": the usual libraries, which a catalog then serves, if one is given."""
    from flowccl.run.group_backends import library_group, usual_backends

    if not is_set():
        log.warning("flowccl: FLOWCCL_CATALOG is not set; the library serves all calls")
    return library_group(store, rank, size, timeout, usual_backends(store, rank, size))
