"""Eight numbers at once, for compiled kernels.

The compiler turns a plain loop into vector instructions only if it can prove, or check each time,
that its arrays do not overlap, and then leaves the last few rounds to scalar code: on rows of ten
to thirty numbers that is most of the work. The fastest kernels spell out the vector operations
instead, on unchecked pointers. The compiler maps eight lanes to what the processor has (one
register with AVX-512, two with AVX2, four with NEON), and the order of a sum never depends on
where arrays lie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic as numba_intrinsic
from numba.extending import models, register_model

LANES = 8

# Kernels call these without the first argument, which no type checker can know.
intrinsic: Any = numba_intrinsic

_DOUBLES = ir.VectorType(ir.DoubleType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(64), LANES)
_ZERO = ir.Constant(_DOUBLES, [0.0] * LANES)
_POSITIONS = ir.Constant(_INTEGERS, list(range(LANES)))


class _Lanes(types.Type):
    """Eight float64 in a vector register; lives inside kernels only."""

    def __init__(self) -> None:
        super().__init__(name="lanes")


lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _DOUBLES)


@intrinsic
def pointer(typing: Any, array: Any) -> tuple[Any, Callable[..., Any]]:
    """The address of a contiguous array, which the caller must hold on to.

    Arrays count who uses them, and in a loop over small tasks the counting is a third of the time.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), codegen


@intrinsic
def load1(typing: Any, pointer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """``pointer[index]``, one number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.gep(args[0], [args[1]]))

    return pointer.dtype(pointer, types.intp), codegen


@intrinsic
def store1(typing: Any, pointer: Any, index: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """``pointer[index] = value``, one number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], builder.gep(args[0], [args[1]]))
        return context.get_dummy_value()

    return types.void(pointer, types.intp, pointer.dtype), codegen


def _call_llvm(builder: Any, name: str, result: Any, args: list[Any], **flags: Any) -> Any:
    """Call one of LLVM's intrinsic functions."""
    kind = ir.FunctionType(result, [value.type for value in args])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
    return builder.call(function, args, **flags)


def _address(builder: Any, pointer: Any, index: Any) -> Any:
    """The address of the lanes ``pointer[index : index + 8]``."""
    kind = ir.VectorType(pointer.type.pointee, LANES).as_pointer()
    return builder.bitcast(builder.gep(pointer, [index]), kind)


@intrinsic
def load8(typing: Any, pointer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """``pointer[index : index + 8]``, float32 or float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        double = signature.args[0].dtype == types.float64
        read = builder.load(_address(builder, *args), align=8 if double else 4)
        return read if double else builder.fpext(read, _DOUBLES)

    return lanes(pointer, types.intp), codegen


@intrinsic
def store8(typing: Any, pointer: Any, index: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    """``pointer[index : index + 8] = x``, float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _address(builder, *args[:2]), align=8)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, lanes), codegen


@intrinsic
def prefetch(typing: Any, pointer: Any, index: Any) -> tuple[Any, Callable[..., Any]]:
    """Ask for the cache line of ``pointer[index]``; an index outside of the array is harmless."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = builder.bitcast(builder.gep(args[0], [args[1]]), ir.IntType(8).as_pointer())
        codes = [ir.IntType(32)(code) for code in (0, 3, 1)]  # read, retain in cache, data
        _call_llvm(builder, "prefetch.p0", ir.VoidType(), [address, *codes])
        return context.get_dummy_value()

    return types.void(pointer, types.intp), codegen


@intrinsic
def store8_from(
    typing: Any, pointer: Any, index: Any, x: Any, first: Any
) -> tuple[Any, Callable[..., Any]]:
    """``pointer[index + first : index + 8] = x[first:]``; nothing before that is touched."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, mask = _address(builder, *args[:2]), _mask_from(builder, args[3])
        operands = [args[2], address, ir.IntType(32)(8), mask]
        _call_llvm(builder, f"masked.store.v{LANES}f64.p0", ir.VoidType(), operands)
        return context.get_dummy_value()

    return types.void(pointer, types.intp, lanes, types.intp), codegen


@intrinsic
def broadcast(typing: Any, number: Any) -> tuple[Any, Callable[..., Any]]:
    """One number in every lane."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _broadcast(builder, args[0], _DOUBLES)

    return lanes(types.float64), codegen


def _broadcast(builder: Any, number: Any, kind: Any) -> Any:
    undefined = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.IntType(32)(0))
    pattern = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, undefined, pattern)


def _mask_from(builder: Any, first: Any) -> Any:
    """The mask of the lanes from ``first`` on."""
    return builder.icmp_signed(">=", _POSITIONS, _broadcast(builder, first, _INTEGERS))


@intrinsic
def add_product(typing: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """The sum a b + c, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_llvm(builder, f"fma.v{LANES}f64", _DOUBLES, args)

    return lanes(lanes, lanes, lanes), codegen


@intrinsic
def from_lane(typing: Any, x: Any, first: Any) -> tuple[Any, Callable[..., Any]]:
    """The lanes of x from ``first`` on, zero before them whatever was there."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(_mask_from(builder, args[1]), args[0], _ZERO)

    return lanes(lanes, types.intp), codegen


@intrinsic
def add_to_lane(typing: Any, x: Any, number: Any, lane: Any) -> tuple[Any, Callable[..., Any]]:
    """The lanes of x, with ``number`` added in one of them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask = builder.icmp_signed("==", _POSITIONS, _broadcast(builder, args[2], _INTEGERS))
        one = builder.select(mask, _broadcast(builder, args[1], _DOUBLES), _ZERO)
        return builder.fadd(args[0], one)

    return lanes(lanes, types.float64, types.intp), codegen


@intrinsic
def sum_lanes(typing: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    """The sum over lanes."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        operands = [ir.Constant(ir.DoubleType(), -0.0), args[0]]
        name = f"vector.reduce.fadd.v{LANES}f64"
        return _call_llvm(builder, name, ir.DoubleType(), operands, fastmath=("reassoc",))

    return types.float64(lanes), codegen


@intrinsic
def multiply(typing: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """The product a b."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(*args)

    return lanes(lanes, lanes), codegen


@intrinsic
def subtract_product(typing: Any, a: Any, b: Any, c: Any) -> tuple[Any, Callable[..., Any]]:
    """The difference c - a b, rounded once."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_llvm(builder, f"fma.v{LANES}f64", _DOUBLES, [builder.fneg(args[0]), *args[1:]])

    return lanes(lanes, lanes, lanes), codegen


@intrinsic
def inverse_root(typing: Any, x: Any) -> tuple[Any, Callable[..., Any]]:
    """One over the square root of x."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        root = _call_llvm(builder, f"sqrt.v{LANES}f64", _DOUBLES, [args[0]])
        return builder.fdiv(ir.Constant(_DOUBLES, [1.0] * LANES), root)

    return lanes(lanes), codegen


@intrinsic
def larger(typing: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    """The larger of a and b in each lane; of a number and NaN, the number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _call_llvm(builder, f"maxnum.v{LANES}f64", _DOUBLES, args)

    return lanes(lanes, lanes), codegen
