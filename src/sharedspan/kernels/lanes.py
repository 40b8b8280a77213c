"""Eight numbers at once, for compiled kernels.

The compiler turns a plain loop into vector instructions only if it can prove, or check each time,
that its arrays do not overlap, and then runs the last few iterations as scalar code: on rows of ten
to thirty numbers that is most of the work. The fastest kernels spell out the vector operations
instead, on unchecked pointers. The compiler maps eight lanes to the registers of the processor (one
with AVX-512, two with AVX2, four with NEON), and the order of a sum never depends on addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from llvmlite import ir
from numba.core import cgutils, errors, types
from numba.extending import intrinsic, models, register_model

LANES = 8
POINTER = None  # a pointer to float32 or float64 numbers, as the caller has it

_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(64), LANES)
_ZERO = ir.Constant(_DOUBLES, [0.0] * LANES)
_POSITIONS = ir.Constant(_INTEGERS, list(range(LANES)))


class _Lanes(types.Type):
    """Eight float64 in a vector register, inside kernels only."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _DOUBLES)


def operation(result: Any, *arguments: Any) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function that emits LLVM code, so that kernels can call it.

    The function receives the builder and the values of its arguments, of the given types; kernels
    call it without the builder.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        @wraps(emit)
        def define(typing: Any, *given: Any) -> tuple[Any, Callable[..., Any]]:
            def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                value = emit(builder, *args)
                return context.get_dummy_value() if result is types.void else value

            pairs = zip(arguments, given, strict=True)
            return result(*(own if kind is POINTER else kind for kind, own in pairs)), codegen

        return intrinsic(define)

    return decorate


def _pointer(typing: Any, array: Any) -> tuple[Any, Callable[..., Any]]:
    """The address of a contiguous array, which must be in use until the end: see ``keep``.

    Reference counts of arrays take a third of the time of a loop over small tasks.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    if array.layout != "C":
        raise errors.TypingError("only a contiguous array has an address here")
    return types.CPointer(array.dtype)(array), codegen


pointer: Any = intrinsic(_pointer)  # kernels call it without the first argument


def _keep(typing: Any, arrays: Any) -> tuple[Any, Callable[..., Any]]:
    """Do nothing. A kernel frees its own arrays after their last use, and this is one."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return types.void(arrays), codegen


keep: Any = intrinsic(_keep)


def _shifted(typing: Any, pointer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """The address of ``pointer[index]``."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.gep(args[0], [args[1]])

    return pointer(pointer, types.intp), codegen


shifted: Any = intrinsic(_shifted)


def _address(builder: Any, pointer: Any, index: Any) -> Any:
    """The address of the lanes ``pointer[index : index + 8]``."""
    kind = ir.VectorType(pointer.type.pointee, LANES).as_pointer()
    return builder.bitcast(builder.gep(pointer, [index]), kind)


def _call_llvm(builder: Any, name: str, result: Any, args: list[Any], **flags: Any) -> Any:
    """Call one of LLVM's intrinsic functions."""
    kind = ir.FunctionType(result, [value.type for value in args])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, args, **flags)


def _broadcast(builder: Any, number: Any, kind: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    pattern = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, pattern)


def _mask_from(builder: Any, first: Any) -> Any:
    """The mask of the lanes from ``first`` on."""
    return builder.icmp_signed(">=", _POSITIONS, _broadcast(builder, first, _INTEGERS))


@operation(types.float64, POINTER, types.intp)
def load1(builder: Any, pointer: Any, index: Any) -> Any:
    """``pointer[index]``, one float64."""
    return builder.load(builder.gep(pointer, [index]))


@operation(types.void, POINTER, types.intp, types.float64)
def store1(builder: Any, pointer: Any, index: Any, value: Any) -> None:
    """``pointer[index] = value``, one float64."""
    builder.store(value, builder.gep(pointer, [index]))


@operation(lanes, POINTER, types.intp)
def load8(builder: Any, pointer: Any, index: Any) -> Any:
    """``pointer[index : index + 8]``, float32 or float64."""
    double = pointer.type.pointee == ir.DoubleType()
    read = builder.load(_address(builder, pointer, index), align=8 if double else 4)
    return read if double else builder.fpext(read, _DOUBLES)


@operation(types.void, POINTER, types.intp, lanes)
def store8(builder: Any, pointer: Any, index: Any, x: Any) -> None:
    """``pointer[index : index + 8] = x``, float64."""
    builder.store(x, _address(builder, pointer, index), align=8)


@operation(types.void, POINTER, types.intp, lanes, types.intp)
def store8_from(builder: Any, pointer: Any, index: Any, x: Any, first: Any) -> None:
    """``pointer[index + first : index + 8] = x[first:]``; nothing before that is touched."""
    operands = [x, _address(builder, pointer, index), ir.IntType(32)(8), _mask_from(builder, first)]
    _call_llvm(builder, f"masked.store.v{LANES}f64.p0", ir.VoidType(), operands)


@operation(types.void, POINTER, types.intp)
def prefetch(builder: Any, pointer: Any, index: Any) -> None:
    """Prefetch the cache line of ``pointer[index]``, which may be outside of the array."""
    address = builder.bitcast(builder.gep(pointer, [index]), ir.IntType(8).as_pointer())
    codes = [ir.IntType(32)(code) for code in (0, 3, 1)]  # read, retain in cache, data
    _call_llvm(builder, "prefetch.p0", ir.VoidType(), [address, *codes])


@operation(lanes, types.float64)
def broadcast(builder: Any, number: Any) -> Any:
    """One number in every lane."""
    return _broadcast(builder, number, _DOUBLES)


@operation(lanes, lanes, lanes, lanes)
def add_product(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum a b + c, rounded once."""
    return _call_llvm(builder, f"fma.v{LANES}f64", _DOUBLES, [a, b, c])


@operation(lanes, lanes, types.intp)
def from_lane(builder: Any, x: Any, first: Any) -> Any:
    """The lanes of x from ``first`` on, with zeros before them."""
    return builder.select(_mask_from(builder, first), x, _ZERO)


@operation(lanes, lanes, types.float64, types.intp)
def add_to_lane(builder: Any, x: Any, number: Any, lane: Any) -> Any:
    """The lanes of x, with ``number`` added in one of them."""
    mask = builder.icmp_signed("==", _POSITIONS, _broadcast(builder, lane, _INTEGERS))
    return builder.fadd(x, builder.select(mask, _broadcast(builder, number, _DOUBLES), _ZERO))


@operation(types.float64, lanes)
def sum_lanes(builder: Any, x: Any) -> Any:
    """The sum over lanes."""
    operands = [ir.Constant(ir.DoubleType(), -0.0), x]
    name = f"vector.reduce.fadd.v{LANES}f64"
    return _call_llvm(builder, name, ir.DoubleType(), operands, fastmath=("reassoc",))


@operation(lanes, lanes, lanes)
def multiply(builder: Any, a: Any, b: Any) -> Any:
    """The product a b."""
    return builder.fmul(a, b)


@operation(lanes, lanes, lanes, lanes)
def subtract_product(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """The difference c - a b, rounded once."""
    return _call_llvm(builder, f"fma.v{LANES}f64", _DOUBLES, [builder.fneg(a), b, c])


@operation(lanes, lanes)
def reciprocal_root(builder: Any, x: Any) -> Any:
    """One over the square root of x."""
    root = _call_llvm(builder, f"sqrt.v{LANES}f64", _DOUBLES, [x])
    return builder.fdiv(ir.Constant(_DOUBLES, [1.0] * LANES), root)


@operation(lanes, lanes, lanes)
def larger(builder: Any, a: Any, b: Any) -> Any:
    """The larger of a and b in each lane; of a number and NaN, the number."""
    return _call_llvm(builder, f"maxnum.v{LANES}f64", _DOUBLES, [a, b])
