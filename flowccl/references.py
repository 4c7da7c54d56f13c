"""Tuples of arrays that the parts of an entry point receive by reference; `machine_code.py` says which do.

numba passes a tuple of arrays as seven numbers for each array. A state has 50 of them, so passing it on takes longer
than the work of a small part, and compiling that takes longer than compiling the work. Here the caller stores a tuple
once, and a part receives one pointer. The part reads the fields that it uses when it begins.
"""

from typing import Any

from llvmlite import ir
from numba.core import types as numba_types
from numba.core.datamodel.models import PrimitiveModel
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_cast, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr

types: Any = numba_types
_POINTER = ir.IntType(8).as_pointer()


class Reference(numba_types.Type):
    """A pointer to a tuple with named fields, which nobody changes while the function runs."""

    def __init__(self, target: Any) -> None:
        self.target = target
        super().__init__(name=f"reference({target.name})")

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """A short name; the names of all fields and their types are thousands of characters."""
        return self.target.instance_class.__name__, ()

    def member(self, field: str) -> Any:
        """The type of a field of the tuple."""
        return self.target[self.target.fields.index(field)]


def referred(kind: Any) -> Any:
    """The type of an argument that is passed by reference if it is a tuple."""
    return Reference(kind) if isinstance(kind, types.BaseNamedTuple) else kind


def valued(kind: Any) -> Any:
    """The type of an argument that is passed as it is."""
    return kind.target if isinstance(kind, Reference) else kind


def mark(function: Any, names: Any, kinds: Any) -> None:
    """Tell the optimizer that nothing changes the tuples to which the arguments of a function refer."""
    references = {f"arg.{name}" for name, kind in zip(names, kinds, strict=True) if isinstance(kind, Reference)}
    for argument in function.args:
        if argument.name in references:
            argument.add_attribute("noalias")


@register_default(Reference)
class _ReferenceModel(PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _POINTER)


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = Reference

    def generic_resolve(self, reference: Any, field: str) -> Any:
        """The type of a field."""
        return referred(reference.member(field)) if field in reference.target.fields else None


@lower_getattr_generic(Reference)  # type: ignore[untyped-decorator]
def _field(context: Any, builder: Any, kind: Any, value: Any, field: str) -> Any:
    """A field; where the function received the reference, it is read once, when the function begins."""
    reads = _notes(builder, "_fields_read")
    if not isinstance(value, ir.Argument) and id(value) not in reads:
        return _read(context, builder, kind, value, field)
    known = reads.setdefault(id(value), {})
    if field not in known:
        with builder.goto_entry_block():
            known[field] = _read(context, builder, kind, value, field)
        if isinstance(kind.member(field), types.BaseNamedTuple):
            reads.setdefault(id(known[field]), {})
    return known[field]


@lower_cast(types.BaseNamedTuple, Reference)  # type: ignore[untyped-decorator]
def _stored(context: Any, builder: Any, given: Any, kind: Any, value: Any) -> Any:
    """A pointer to a tuple: to its variable, or to a copy that is made once, where the tuple comes into being."""
    if _is_variable(builder, value):
        return builder.bitcast(value.operands[0], _POINTER)
    copies = _notes(builder, "_stored_tuples")
    if id(value) not in copies:
        with builder.goto_entry_block():
            builder.position_at_start(builder.block)
            place = builder.alloca(value.type)
        before = value if isinstance(value, ir.Instruction) else place
        with builder.goto_block(before.parent):
            builder.position_after(before)
            builder.store(value, place)
        copies[id(value)] = place
    return builder.bitcast(copies[id(value)], _POINTER)


@lower_cast(Reference, types.BaseNamedTuple)  # type: ignore[untyped-decorator]
def _loaded(context: Any, builder: Any, kind: Any, wanted: Any, value: Any) -> Any:
    return _load(builder, value, context.get_value_type(wanted))


def _notes(builder: Any, name: str) -> dict[int, Any]:
    """Notes on the function that is being compiled, by the numbers of its values."""
    found: dict[int, Any] = builder.function.__dict__.setdefault(name, {})
    return found


def _is_variable(builder: Any, value: Any) -> bool:
    """Whether a value was just read from a variable, which still has it."""
    if not (isinstance(value, ir.LoadInstr) and isinstance(value.operands[0], ir.AllocaInstr)):
        return False
    for later in reversed(builder.block.instructions):
        if later is value:
            return True
        if isinstance(later, ir.StoreInstr) and later.operands[1] is value.operands[0]:
            return False
    return False


def _read(context: Any, builder: Any, kind: Any, value: Any, field: str) -> Any:
    """A field of the tuple at a pointer; of a tuple in a tuple, its pointer."""
    member = kind.member(field)
    place = _element(context, builder, context.get_value_type(kind.target), value, kind.target.fields.index(field))
    if isinstance(member, types.BaseNamedTuple):
        return place
    if isinstance(member, types.Array) and member.ndim == 1 and member.layout == "C":
        return _array(context, builder, member, place)
    return _load(builder, place, context.get_value_type(member))


def _array(context: Any, builder: Any, kind: Any, place: Any) -> Any:
    """A contiguous array: its stride is known, and its number of items is its length."""
    model = context.data_model_manager[kind]
    layout, width = model.get_value_type(), context.get_abi_sizeof(context.get_data_type(kind.dtype))
    item = context.get_constant(types.intp, width)
    array = builder.insert_value(ir.Constant(layout, ir.Undefined), item, model.get_field_position("itemsize"))
    array = builder.insert_value(array, item, (model.get_field_position("strides"), 0))
    for name in ("meminfo", "parent", "data", "shape"):
        position = model.get_field_position(name)
        element = _element(context, builder, layout, place, position)
        array = builder.insert_value(array, _load(builder, element, layout.elements[position]), position)
    count = builder.extract_value(array, (model.get_field_position("shape"), 0))
    return builder.insert_value(array, count, model.get_field_position("nitems"))


def _element(context: Any, builder: Any, layout: Any, pointer: Any, index: int) -> Any:
    """A pointer to an element of what a pointer points to."""
    end = 0
    for number, element in enumerate(layout.elements):
        align = context.get_abi_alignment(element)
        begin = -(-end // align) * align
        if number == index:
            break
        end = begin + context.get_abi_sizeof(element)
    return builder.gep(pointer, [ir.Constant(ir.IntType(64), begin)], inbounds=True) if begin else pointer


def _load(builder: Any, place: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(place, kind.as_pointer()))
