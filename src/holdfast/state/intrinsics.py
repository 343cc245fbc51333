"""Memory by address, a few machine instructions that Numba does not offer by name, and the hash built on them.

Kernels of the state engine take *addresses*, not arrays: a structure is a small block of words that holds the
addresses of its parts, and `load`/`store` reach through it. Numba counts references on every array that is taken out
of a tuple, and a map has a dozen arrays; measured, that made an upsert twenty times slower than the memory it
touches. The Python object that owns a block also owns everything the block points to, so an address never outlives
its memory.

`prefetch` starts the load of a cache line, so that a batch of look-ups waits for memory once instead of once each;
`trailing_zeros` walks bit masks; `multiply_high` maps a hash to a bucket without a division; `mix` is the folded
128-bit product of wyhash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic as numba_intrinsic
from numpy.typing import NDArray


def intrinsic(typer: Callable) -> Any:
    """Numba's decorator, without its types: to a type checker, calling an intrinsic would take one argument too many
    and never return."""
    return numba_intrinsic(typer)


_I8, _I32, _I64, _I128 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(128)
_BYTES = _I8.as_pointer()


def _pointer(builder: ir.IRBuilder, address: ir.Value, index: ir.Value, element: ir.Type) -> ir.Value:
    return builder.gep(builder.inttoptr(address, element.as_pointer()), [index])


def _loader(element: ir.Type, numba_type, widen: bool) -> Callable:
    def typer(typingctx, address, index):  # pyright: ignore[reportUnusedParameter]
        def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
            value = builder.load(_pointer(builder, args[0], args[1], element))
            return builder.zext(value, _I64) if widen else value

        return numba_type(types.int64, types.int64), codegen

    return typer


def _storer(element: ir.Type, numba_type, narrow: bool) -> Callable:
    def typer(typingctx, address, index, value):  # pyright: ignore[reportUnusedParameter]
        def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
            item = builder.trunc(args[2], element) if narrow else args[2]
            builder.store(item, _pointer(builder, args[0], args[1], element))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, numba_type), codegen

    return typer


#: load(address, i): word i from an address. store(address, i, word).
load = intrinsic(_loader(_I64, types.int64, False))
store = intrinsic(_storer(_I64, types.int64, False))
load_float = intrinsic(_loader(ir.DoubleType(), types.float64, False))
store_float = intrinsic(_storer(ir.DoubleType(), types.float64, False))
load_byte = intrinsic(_loader(_I8, types.int64, True))
store_byte = intrinsic(_storer(_I8, types.int64, True))


@intrinsic
def copy_words(typingctx, dst, src, n):  # pyright: ignore[reportUnusedParameter]
    """Copy n words between addresses that do not overlap."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        to, source = (builder.inttoptr(a, _BYTES) for a in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 8, align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def zero_words(typingctx, dst, n):  # pyright: ignore[reportUnusedParameter]
    """Set n words to zero."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        cgutils.memset(builder, builder.inttoptr(args[0], _BYTES), builder.mul(args[1], _I64(8)), 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def prefetch(typingctx, address):  # pyright: ignore[reportUnusedParameter]
    """Ask for the cache line at an address; never faults, never waits."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        function_type = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(args[0], _BYTES), _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def trailing_zeros(typingctx, value):  # pyright: ignore[reportUnusedParameter]
    """Index of the lowest set bit of a non-zero uint64."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), codegen


@intrinsic
def count_ones(typingctx, value):  # pyright: ignore[reportUnusedParameter]
    """Number of set bits of a uint64."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def swap_bytes(typingctx, value):  # pyright: ignore[reportUnusedParameter]
    """Bytes of a uint64 in reverse: turns the order of numbers into the order of strings."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        return builder.bswap(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def multiply_high(typingctx, a, b):  # pyright: ignore[reportUnusedParameter]
    """High half of the 128-bit product of two uint64."""

    def codegen(context, builder, signature, args):  # pyright: ignore[reportUnusedParameter]
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, _I128(64)), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


@njit(cache=True)
def mix(a, b):
    """Fold the 128-bit product of two words into one."""
    x = np.uint64(a)
    y = np.uint64(b)
    return multiply_high(x, y) ^ np.uint64(x * y)


def address(array: NDArray) -> int:
    """Where an array's data is. The caller keeps the array alive."""
    return array.__array_interface__["data"][0]
