"""Makes the process groups of this process use the catalogs of the environment, without a change of the program.

The functions of torch.distributed that make groups are wrapped: the library's group is made as ever, and a group of
flowccl with the same backends takes its place in torch's tables.
"""

import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from types import ModuleType
from typing import Any

from flowccl.torch.environment import job_settings, start_log

_SERVED = {"gloo", "nccl"}
_TABLES = ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag", "pg_group_ranks")


@lru_cache(maxsize=1)
def install() -> None:
    """Wrap the functions that make groups, once; catalogs are read when the first group is made."""
    from torch.distributed import distributed_c10d

    start_log(job_settings())
    _replace(distributed_c10d, "_new_process_group_helper", _making_groups)
    if hasattr(distributed_c10d, "split_group"):
        _replace(distributed_c10d, "split_group", _splitting_groups)
    _replace(distributed_c10d, "batch_isend_irecv", _sending_batches)


def _replace(module: ModuleType, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace a function, also where modules of torch have imported it already."""
    original = getattr(module, name)
    replacement = wraps(original)(wrapper(original))
    for known in [one for key, one in sys.modules.items() if key.startswith("torch.distributed") and one is not None]:
        if vars(known).get(name) is original:
            setattr(known, name, replacement)


def _making_groups(original: Any) -> Any:
    signature = inspect.signature(original)

    def make(*args: Any, **named: Any) -> Any:
        made, store = original(*args, **named)
        given = signature.bind(*args, **named).arguments
        ranks = list(given.get("global_ranks_in_group") or [])
        return _served(made, store, ranks, given.get("timeout")), store

    return make


def _splitting_groups(original: Any) -> Any:
    signature = inspect.signature(original)

    def split(*args: Any, **named: Any) -> Any:
        made = original(*args, **named)
        if made is None:
            return made
        from torch.distributed.distributed_c10d import get_process_group_ranks

        timeout = signature.bind(*args, **named).arguments.get("timeout")
        return _served(made, made.get_group_store(), get_process_group_ranks(made), timeout)

    return split


def _sending_batches(original: Any) -> Any:
    def send(p2p_op_list: Any) -> Any:
        """Give the library its own groups: it treats batches of other classes of groups message by message."""
        operations = []
        for operation in p2p_op_list:
            group = operation.group or _default_group()
            operations.append(object.__new__(type(operation)))  # its own constructor wants a group of torch's tables
            vars(operations[-1]).update(vars(operation), group=getattr(group, "inner", group))
        return original(operations)

    return send


def _default_group() -> Any:
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_group()


def _served(group: Any, store: Any, ranks: list[int], timeout: Any) -> Any:
    """Return the group that takes the place of a group of the library, or that group itself."""
    from torch.distributed import distributed_c10d

    world = distributed_c10d._world
    if group is None or group not in world.pg_map or hasattr(group, "inner") or group.size() < 2:
        return group
    if not {str(group._get_backend(device).name()) for device in group._device_types} <= _SERVED:
        return group
    from flowccl.torch.job import current_job

    made = current_job().group(group, store, ranks, timeout or distributed_c10d.default_pg_timeout)
    if made is None:
        return group
    _take_place(distributed_c10d, group, made)
    return made


def _take_place(distributed_c10d: Any, group: Any, made: Any) -> None:
    """Put a group in the place of another one in torch's tables."""
    name, world = group.group_name, distributed_c10d._world
    made._set_group_name(name)
    made._set_group_desc(group.group_desc)
    for table in (getattr(world, key) for key in _TABLES):
        if group in table:
            table[made] = table.pop(group)
    for groups in world.tags_to_pg.values():
        groups[:] = [made if one is group else one for one in groups]
    distributed_c10d._unregister_process_group(name)
    distributed_c10d._register_process_group(name, made)
