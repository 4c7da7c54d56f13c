"""How numba makes machine code for flowccl: of entry points only, kept on disk, by one process for all.

This module, `references.py` and `compiled.py` are the only ones that import numba; the first two alone use what numba
does not promise.
"""

import gc
import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from glob import escape as glob_escape
from hashlib import sha256
from pathlib import Path
from typing import Any

from llvmlite.binding import Linkage, parse_bitcode
from llvmlite.ir.types import Type
from numba.core import event, types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
    UserWideCacheLocator,
)
from numba.core.callconv import CPUCallConv
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.ir import Inst, Var
from numba.core.lowering import Lower
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.targetconfig import TargetConfig
from numba.core.utils import OPERATORS_TO_BUILTINS
from numba.extending import register_jitable
from numba.np import arrayobj

from flowccl.compile_cache import lock, user_folder
from flowccl.references import mark, referred, valued


class _Library(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function, which is linked with all that it calls and made machine code where Python calls it.

    numba optimizes every function with all that it calls and makes machine code of it, then does the same for each of
    its callers. The parts of an entry point are never called on their own, so here they only wait for it.
    """

    _is_linked = False
    _shared_module: Any
    _bitcode = b""  # of one from the cache: what other functions would link

    def finalize(self) -> None:
        """Nothing more is added; what is done now is done later, if at all."""

    def _optimize_functions(self, ll_module: Any) -> None:
        """Functions are optimized with the entry point that they are part of."""
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """In one pass. numba has one before it, for functions that count references in their inner loops."""
        passes, builder = self._codegen._module_pass_manager()
        passes.run(self._final_module, builder)

    def get_pointer_to_function(self, name: str) -> int:
        """The address of a function's machine code, which is made now; 0 where the library has no such function."""
        if not self._finalized:
            if not any(found.name == name and not found.is_declaration for found in self._final_module.functions):
                return 0
            self._link()
            self._optimize_final_module()
            self._final_module.verify()
            self._finalize_final_module()
        return int(super().get_pointer_to_function(name))

    def _ensure_finalized(self) -> None:
        self.finalize()

    def _get_module_for_linking(self) -> Any:
        if self._bitcode and self._shared_module is None:
            self._shared_module = parse_bitcode(self._bitcode)
        self._link()
        return super()._get_module_for_linking()

    def _link(self) -> None:
        """Link everything that the function calls, directly or not, each once."""
        if self._is_linked or self._finalized:
            return
        self._is_linked = True
        called: dict[Any, None] = {}
        self._gather(called)
        called.pop(self, None)
        for library in called:
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(_module_of(library), preserve=True)
        for found in self._final_module.functions:
            if found.linkage == Linkage.weak_odr:
                found.linkage = Linkage.linkonce_odr

    def serialize_using_object_code(self) -> tuple[str, str, Any]:
        """What the cache keeps: the machine code, the symbols that it defines, and what other functions would link."""
        name, kind, (code, bitcode) = super().serialize_using_object_code()
        module = self._final_module
        defined = (one for group in (module.functions, module.global_variables) for one in group)
        return name, kind, (code, [one.name for one in defined if not one.is_declaration], bitcode)

    @classmethod
    def _unserialize(cls, codegen: Any, state: tuple[str, str, Any]) -> "_Library":
        """A library from the cache. numba parses what other functions would link, to see the symbols in it."""
        name, _, (code, symbols, bitcode) = state
        library: _Library = codegen.create_library(name)
        library.enable_object_caching()
        library._set_compiled_object(code)
        library._bitcode = bitcode
        library._finalize_final_module()
        codegen._engine._defined_symbols.update(symbols)
        return library

    def _gather(self, called: dict[Any, None]) -> None:
        """Add the libraries that are called."""
        for library in self._linking_libraries:
            if library not in called:
                called[library] = None
                if _waits(library):
                    library._gather(called)


def _waits(library: Any) -> bool:
    """Whether a library has nothing but its own function."""
    return isinstance(library, _Library) and not (library._is_linked or library._finalized)


def _module_of(library: Any) -> Any:
    """The module of a library, to be linked into another one."""
    if not _waits(library):
        return library._get_module_for_linking()
    module = library._final_module.clone()
    for found in module.functions:
        if not found.is_declaration and found.linkage in (Linkage.external, Linkage.linkonce_odr):
            found.linkage = Linkage.weak_odr  # kept by the linker, even where nothing calls it yet
    return module


def part(function: Any, *, by_reference: bool = False) -> Any:
    """Let a part of an entry point be compiled once for all constants and widths of integers.

    It may receive tuples by reference; parts that return what they receive, or put it into other tuples, may not.
    """
    template, passed = function.get_call_template, referred if by_reference else valued

    def of_types(found: Sequence[Any], names: Any) -> Any:
        return template(tuple(passed(_general(kind)) for kind in found), names)

    function.get_call_template = of_types
    return function


def _general(found: Any) -> Any:
    """The type of all constants like this one, or of all integers."""
    numba_types: Any = types
    found = numba_types.unliteral(found)
    return numba_types.int64 if isinstance(found, numba_types.Integer) and found.signed else found


def with_parts(compile_signature: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compile or load an entry point such that its parts are only linked into it."""

    @wraps(compile_signature)
    def compile_entry_point(signature: Any) -> Any:
        with global_compiler_lock, _only_linked():
            return compile_signature(signature)

    return compile_entry_point


@contextmanager
def _only_linked() -> Iterator[None]:
    """Let numba make machine code where it is asked for; parts have none, thus no place for their environment.

    Compiling makes many objects that stay, so looking for garbage among them takes a tenth of the time.
    """
    codegen, collects = cpu_target.target_context.codegen(), gc.isenabled()
    set_environment, decorate = codegen.set_env, CPUCallConv.decorate_function

    def set_if_defined(name: str, environment: Any) -> None:
        if codegen._engine.is_symbol_defined(name):
            set_environment(name, environment)

    def decorate_and_mark(convention: Any, function: Any, names: Any, kinds: Any, noalias: bool = False) -> None:
        decorate(convention, function, names, kinds, noalias)
        mark(function, names, kinds)

    changes: list[tuple[Any, str, Any]] = [
        (codegen, "_library_class", _Library),
        (codegen, "set_env", set_if_defined),
        (TargetConfig, "values", _values),
        (CPUCallConv, "decorate_function", decorate_and_mark),
        (Lower, "create_cfunc_wrapper", lambda lowering: None),  # for code in C, which calls none of these functions
        (arrayobj, "raise_with_shape_context", _raise_shapes_differ),
        (event, "start_event", _nobody_listens),
        (event, "end_event", _nobody_listens),
        (Type, "get_abi_size", _size),
        (Type, "get_abi_alignment", _alignment),
        (Inst, "_rec_list_vars", _variables),
        (types.BaseFunction, "get_call_type", _operator_type),
    ]
    before = [getattr(place, name) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    gc.disable()
    try:
        yield
    finally:
        for (place, name, _), value in zip(changes, before, strict=True):
            setattr(place, name, value)
        if collects:
            gc.enable()


@register_jitable
def _raise_shapes_differ(source: Any, target: Any) -> None:
    """As numba's own, which names both shapes, and with it compiles how numbers are written as text."""
    raise ValueError("a slice cannot be assigned an array of another shape")


def _nobody_listens(*arguments: Any, **options: Any) -> None:
    """In place of an event, of which each call of LLVM makes two."""


def _size(kind: Any, target_data: Any, context: Any = None) -> int:
    """As `Type.get_abi_size`, for which LLVM parses a module with a variable of the type; once for each type."""
    return _space_of(kind, target_data)[0]


def _alignment(kind: Any, target_data: Any, context: Any = None) -> int:
    """As `Type.get_abi_alignment`, once for each type."""
    return _space_of(kind, target_data)[1]


def _space_of(kind: Any, target_data: Any) -> tuple[int, int]:
    """The size and the alignment of a type, in bytes."""
    name = str(kind)
    if name not in _SPACES:
        found = kind._get_ll_global_value_type(target_data)
        _SPACES[name] = target_data.get_abi_size(found), target_data.get_abi_alignment(found)
    return _SPACES[name]


_SPACES = dict[str, tuple[int, int]]()


def _variables(statement: Any, value: Any) -> list[Any]:
    """As `Inst._rec_list_vars`: the variables in a part of a statement, most of which has none."""
    kind, found = type(value), []
    if kind is dict:
        value = value.values()
    elif kind not in (list, tuple):
        value = (value,)
    for part in value:
        kind = type(part)
        if kind is Var:
            found.append(part)
        elif kind in (list, tuple, dict):
            found += _variables(statement, part)
        elif issubclass(kind, Inst):
            found += part.list_vars()
    return found


_call_type = types.BaseFunction.get_call_type


def _operator_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
    """As `BaseFunction.get_call_type`; once for each operator on numbers of the same types, or on items of arrays."""
    place = function.typing_key in _OF_ITEMS
    plain = function.typing_key in OPERATORS_TO_BUILTINS or place
    if not plain or kws or not all(isinstance(arg, _PLAIN if place else _PLAIN[:2]) for arg in args):
        return _call_type(function, context, args, kws)
    key = id(function), args
    if key not in _OPERATORS:
        _OPERATORS[key] = function, _call_type(function, context, args, kws)
    return _OPERATORS[key][1]


_OF_ITEMS = operator.getitem, operator.setitem
_PLAIN: Any = types.Number, types.Boolean, types.Array
_OPERATORS = dict[Any, tuple[Any, Any]]()


def _values(flags: TargetConfig) -> dict[str, Any]:
    """As `TargetConfig.values`, which numba calls 100,000 times for one method, but 10 times as fast."""
    kind: Any = type(flags)
    return {**_defaults(kind), **flags._values}


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    return {name: option.default for name, option in kind.options.items()}


class _UserFolderLocator(UserWideCacheLocator):  # type: ignore[misc]
    """Puts entries in flowccl's folder in the user's cache folder, where `__pycache__` is not writable."""

    def __init__(self, py_func: Any, py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = str(user_folder() / self.get_suitable_cache_subpath(py_file))


class _CacheImplementation(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (UserProvidedCacheLocator, InTreeCacheLocator, _UserFolderLocator)


class DiskCache(FunctionCache):  # type: ignore[misc]
    """Holds a lock while a function is compiled: another process that needs the function waits and loads it."""

    _impl_class = _CacheImplementation

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, _digest(function.__module__))
        self._lock_name = f"{function.__module__}.{function.__qualname__}"
        self._locked = ExitStack()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None; the caller then compiles it and calls `save_overload`."""
        found = self._loaded(sig, target_context)
        if found is None:
            self._locked.close()  # of a compilation that failed
            self._locked.enter_context(lock(self._lock_name, wait=True))
            found = self._loaded(sig, target_context)
            if found is not None:
                self._locked.close()
        return found

    def _loaded(self, sig: Any, target_context: Any) -> Any:
        """As numba does, but without loading first all that it can compile, which takes 0.3 s."""
        rtsys.initialize(target_context)  # what machine code needs for arrays
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write what was compiled, and let other processes go on."""
        super().save_overload(sig, data)
        self._locked.close()


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """Writes the machine code before the index that names it, and treats an index that cannot be read as empty.

    numba writes the index first, and gives the machine code of new source the file name of the old one: another process
    that reads between the two writes runs the old code. It also numbers the files, so that two processes that compile
    two signatures at once choose the same name. Here names contain digests of the source and of the signature. An index
    of an older version may name classes that no longer exist.
    """

    def save(self, key: Any, data: Any) -> None:
        """Add an entry."""
        names = self._load_index()
        stem = f"{Path(self._index_name).stem}.{self._source_stamp[:12]}"
        name = f"{stem}.{sha256(repr(key).encode()).hexdigest()[:12]}.nbc"  # two processes never choose the same one
        self._save_data(name, data)
        self._save_index({**self._load_index(), key: name})
        if not names:
            self._remove_others(stem)

    def paths(self) -> list[str]:
        """The index and what it names."""
        return [self._index_path, *map(self._data_path, self._load_index().values())]

    def _load_index(self) -> dict[Any, str]:
        try:
            return dict(super()._load_index())
        except (AttributeError, ImportError, EOFError):  # written by another version of flowccl
            return {}

    def _remove_others(self, stem: str) -> None:
        """Remove machine code that was compiled from other source."""
        for path in Path(self._cache_path).glob(f"{glob_escape(Path(self._index_name).stem)}.*.nbc"):
            if not path.name.startswith(stem):
                path.unlink(missing_ok=True)


@cache
def _digest(module: str) -> str:
    """A digest of the source of a module and of all modules of flowccl that it imports, directly or not."""
    source = inspect.getsource(sys.modules[module])
    imported = re.findall(r"^from (flowccl[\w.]*) import", source, re.MULTILINE)
    return sha256("".join((source, *map(_digest, imported))).encode()).hexdigest()
