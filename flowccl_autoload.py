"""The entry point that `import torch` calls (group torch.backends); it costs next to nothing and never raises.

It registers the backend "flowccl". If FLOWCCL_CATALOG is set, the process groups of this process use the catalog. It is
a module of its own, outside the package: every program that imports torch loads it, and with it no other module.
"""

import os
from typing import Any


def autoload() -> None:
    """Make flowccl known to torch; anything that fails is one line, and torch goes on without flowccl."""
    try:
        import torch.distributed as dist

        if not dist.is_available():
            return
        if "FLOWCCL" not in dist.Backend._plugins:
            dist.Backend.register_backend("flowccl", _library, devices=["cpu", "cuda"])
        if os.environ.get("FLOWCCL_CATALOG"):
            from flowccl.torch.install import install

            install()
    except Exception as error:
        _warn(f"not used: {type(error).__name__}: {error}")


def _warn(text: str) -> None:
    import logging

    logging.getLogger("flowccl.torch").warning("flowccl: %s", text)


def _library(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """Return the group of the backend "flowccl": the usual libraries, which a catalog then serves, if one is given."""
    from flowccl.run.group_backends import library_group, usual_backends

    if not os.environ.get("FLOWCCL_CATALOG") and rank == 0:
        _warn("FLOWCCL_CATALOG is not set; the library serves all calls")
    return library_group(store, rank, size, timeout, usual_backends(store, rank, size))
