"""`DuckArray`: the protocols, operators and methods of numpy arrays.

`virtualds.arrays` registers lazy implementations of numpy functions and ufuncs. All other functions
load the values.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

NUMPY_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Implementations of numpy's functions for virtual arrays, registered by `virtualds.arrays`."""
UFUNCS: dict[np.ufunc, Callable[..., Any]] = {}
"""Lazy implementations of ufuncs, registered by `virtualds.arrays`."""


def _make_loading_method(name: str) -> Callable[..., Any]:
    """Return a method that loads the values and calls the `numpy.ndarray` method ``name``."""

    def method(self: DuckArray, *args: Any, **kwargs: Any) -> Any:
        return getattr(np.asarray(self), name)(*load_arguments(args), **load_arguments(kwargs))

    method.__name__ = name
    method.__doc__ = f"Load the values, then do what `numpy.ndarray.{name}` does."
    return method


class DuckArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Base class that calls registered implementations of numpy functions, or loads the values.

    Loading calls ``__array__``, which may raise an error for too many bytes.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        raise NotImplementedError

    # ------------------------------------------------------------------ protocols

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        if func in NUMPY_FUNCTIONS:
            result = NUMPY_FUNCTIONS[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        loaded_args, loaded_kwargs = load_arguments((args, dict(kwargs)))
        return func(*loaded_args, **loaded_kwargs)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc in UFUNCS and method == "__call__" and not kwargs:
            result = UFUNCS[ufunc](*inputs)
            if result is not NotImplemented:
                return result
        if "out" in kwargs and kwargs.get("where", True) is True:
            # values in files cannot be written: an in-place operation returns a new array
            kwargs["out"] = tuple(
                np.empty(out.shape, out.dtype) if isinstance(out, DuckArray) else out
                for out in kwargs["out"]
            )
        return getattr(ufunc, method)(*load_arguments(inputs), **load_arguments(kwargs))

    def __getitem__(self, key: Any) -> Any:
        return NUMPY_FUNCTIONS[np.ndarray.__getitem__](self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            f"virtual array {self.shape} {self.dtype}: no item assignment, its values lie in "
            f"files; load it first (ds = ds.virtual.load()), or choose values with where()"
        )

    # ------------------------------------------------------------------ operators

    def __eq__(self, other: Any) -> Any:
        return self._compare(operator.eq, np.equal, other)

    def __ne__(self, other: Any) -> Any:
        return self._compare(operator.ne, np.not_equal, other)

    def _compare(self, compare: Callable[..., Any], ufunc: np.ufunc, other: Any) -> Any:
        if getattr(other, "__array_ufunc__", True) is None:
            return NotImplemented
        lazy = UFUNCS[ufunc](self, other) if ufunc in UFUNCS else NotImplemented
        # for incomparable dtypes, operators return unequal, whereas ufuncs raise
        return compare(np.asarray(self), load_arguments(other)) if lazy is NotImplemented else lazy

    # the operator ** uses np.square and np.sqrt for some exponents, which np.power does not

    def __pow__(self, other: Any) -> Any:
        return np.asarray(self) ** load_arguments(other)

    def __ipow__(self, other: Any) -> Any:
        values = np.asarray(self)
        values **= load_arguments(other)
        return values

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len({self!r}): the array has no axes; use .size")
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(np.asarray(self))

    def __float__(self) -> float:
        return float(np.asarray(self))

    def __int__(self) -> int:
        return int(np.asarray(self))

    # ------------------------------------------------------------------ methods

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Return the array in another shape."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **kwargs)

    def ravel(self, order: Any = "C") -> Any:
        """Return the array flattened to one dimension."""
        return np.ravel(self, order)

    flatten = ravel

    def squeeze(self, axis: Any = None) -> Any:
        """Remove axes of length 1."""
        return np.squeeze(self, axis)

    def swapaxes(self, axis1: int, axis2: int) -> Any:
        """Exchange two axes."""
        return np.swapaxes(self, axis1, axis2)

    def conj(self) -> Any:
        """Return the complex conjugate; a real array is returned unchanged."""
        return self if self.dtype.kind != "c" else np.conj(np.asarray(self))

    conjugate = conj

    @property
    def real(self) -> Any:
        """The real part; a real array itself."""
        return self if self.dtype.kind != "c" else np.asarray(self).real

    @property
    def imag(self) -> Any:
        """The imaginary part; zeros for a real array."""
        return np.zeros_like(self) if self.dtype.kind != "c" else np.asarray(self).imag

    # methods that load the values, listed one by one for type checkers
    all = _make_loading_method("all")
    any = _make_loading_method("any")
    argmax = _make_loading_method("argmax")
    argmin = _make_loading_method("argmin")
    argpartition = _make_loading_method("argpartition")
    argsort = _make_loading_method("argsort")
    byteswap = _make_loading_method("byteswap")
    choose = _make_loading_method("choose")
    clip = _make_loading_method("clip")
    compress = _make_loading_method("compress")
    cumprod = _make_loading_method("cumprod")
    cumsum = _make_loading_method("cumsum")
    diagonal = _make_loading_method("diagonal")
    dot = _make_loading_method("dot")
    item = _make_loading_method("item")
    max = _make_loading_method("max")
    mean = _make_loading_method("mean")
    min = _make_loading_method("min")
    nonzero = _make_loading_method("nonzero")
    prod = _make_loading_method("prod")
    round = _make_loading_method("round")
    searchsorted = _make_loading_method("searchsorted")
    std = _make_loading_method("std")
    sum = _make_loading_method("sum")
    take = _make_loading_method("take")
    tobytes = _make_loading_method("tobytes")
    tolist = _make_loading_method("tolist")
    trace = _make_loading_method("trace")
    var = _make_loading_method("var")
    view = _make_loading_method("view")


def load_arguments(value: Any, *types: type) -> Any:
    """Replace virtual arrays, and instances of ``types``, in (nested) arguments by their values."""
    if isinstance(value, (DuckArray, *types)):
        return np.asarray(value)
    if isinstance(value, tuple | list):
        return type(value)(load_arguments(item, *types) for item in value)
    if isinstance(value, dict):
        return {name: load_arguments(item, *types) for name, item in value.items()}
    return value
