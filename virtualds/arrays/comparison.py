"""Lazy comparisons of virtual arrays, which compare references before values.

xarray compares two arrays by ``((a == b) | (isnull(a) & isnull(b))).all()``. For two arrays that
have the same references, that is always true. So a comparison is a lazy expression, which reads
values only if the references cannot determine the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.arrays.array import ManifestArray
from virtualds.arrays.duck_array import NUMPY_FUNCTIONS, UFUNCS, load_arguments

NULLABLE_KINDS = "fcMmV"


@dataclass(frozen=True, eq=False)
class Comparison(np.lib.mixins.NDArrayOperatorsMixin):
    """A lazy boolean array: a ufunc and its operands, which all have the same shape."""

    ufunc: np.ufunc
    operands: tuple[Any, ...]

    dtype = np.dtype(bool)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""
        shape: tuple[int, ...] = self.operands[0].shape
        return shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Size of the computed values in bytes."""
        return self.size

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        return np.asarray(_compute(self, {}), dtype)

    def __getitem__(self, key: Any) -> Any:
        return Comparison(self.ufunc, tuple(operand[key] for operand in self.operands))

    def astype(self, dtype: npt.DTypeLike, copy: bool = True) -> Any:
        """Convert to another dtype, which computes the values unless it is bool."""
        return self if np.dtype(dtype) == bool else np.asarray(self).astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method == "__call__" and not kwargs and ufunc in UFUNCS:
            result = UFUNCS[ufunc](*inputs)
            if result is not NotImplemented:
                return result
        return getattr(ufunc, method)(*load_arguments(inputs, Comparison), **kwargs)

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        # any other function needs the values
        has_no_options = len(args) == 1 and all(v is None or v is False for v in kwargs.values())
        if func is np.all and has_no_options and is_provably_true(self):
            return np.True_
        return func(*load_arguments(args, Comparison), **load_arguments(dict(kwargs), Comparison))

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the computed values."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"<Comparison {self.ufunc.__name__} {self.shape}>"


def _compute(expression: Any, cache: dict[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Compute an expression; ``cache`` maps the id of each array to its values."""
    if not isinstance(expression, Comparison):
        if id(expression) not in cache:
            cache[id(expression)] = np.asarray(expression)
        return cache[id(expression)]
    values = [_compute(operand, cache) for operand in expression.operands]
    # the operator compares structured dtypes, which np.equal does not
    compute = operator.eq if expression.ufunc is np.equal else expression.ufunc
    return np.asarray(compute(*values))


def is_provably_true(expression: Any) -> bool:
    """Return whether a comparison is true everywhere, as far as references can prove it."""
    if isinstance(expression, ManifestArray):
        return expression.dtype == bool and not expression.fragments and bool(expression.fill_value)
    if expression.ufunc in (np.logical_or, np.bitwise_or):
        left, right = expression.operands
        return (
            is_provably_true(left)
            or is_provably_true(right)
            or _is_equal_or_null(left, right)
            or _is_equal_or_null(right, left)
        )
    if expression.ufunc is np.equal:
        a, b = expression.operands
        return a.dtype.kind not in NULLABLE_KINDS + "O" and _have_same_references(a, b)
    return False


def _is_equal_or_null(equality: Any, nulls: Any) -> bool:
    """Return whether ``equality | nulls`` compares an array with itself, including its nulls."""
    if not isinstance(equality, Comparison) or equality.ufunc is not np.equal:
        return False
    a, b = equality.operands
    return _have_same_references(a, b) and a.dtype.kind != "O" and _is_true_for_nulls(nulls, a)


def _is_true_for_nulls(expression: Any, array: ManifestArray) -> bool:
    """Return whether an expression is true wherever ``array`` is NaN or NaT."""
    if not isinstance(expression, Comparison):
        return False
    if expression.ufunc in (np.isnan, np.isnat):
        return _have_same_references(expression.operands[0], array)
    if expression.ufunc in (np.logical_and, np.bitwise_and):
        return all(_is_true_for_nulls(operand, array) for operand in expression.operands)
    return False


def _have_same_references(a: Any, b: Any) -> bool:
    return (
        isinstance(a, ManifestArray) and isinstance(b, ManifestArray) and a.has_same_references(b)
    )


def _defer(ufunc: np.ufunc) -> Callable[..., Any]:
    """Return a version of a ufunc that is lazy for virtual operands of the same shape."""

    def deferred(*operands: Any) -> Any:
        are_virtual = all(isinstance(o, ManifestArray | Comparison) for o in operands)
        if not are_virtual or len({o.shape for o in operands}) != 1:
            return NotImplemented
        dtypes = [operand.dtype for operand in operands]
        if ufunc is not np.equal or any(dtype.kind != "V" for dtype in dtypes):
            # unsupported dtypes fail immediately
            try:
                ufunc.resolve_dtypes((*dtypes, None))
            except TypeError:
                return NotImplemented
        return Comparison(ufunc, operands)

    return deferred


for _ufunc in (
    np.equal,
    np.isnan,
    np.isnat,
    np.logical_and,
    np.logical_or,
    np.logical_not,
    np.bitwise_and,
    np.bitwise_or,
    np.invert,
):
    UFUNCS[_ufunc] = _defer(_ufunc)


def _reduce_all(array: Any, axis: Any = None, **kwargs: Any) -> Any:
    if axis is None and not kwargs and is_provably_true(array):
        return np.True_
    return NotImplemented


NUMPY_FUNCTIONS[np.all] = _reduce_all
