"""Virtual arrays, and variables and groups of them.

The modules that register numpy functions for virtual arrays are imported with any of the
others.
"""

from virtualds.arrays import comparison, numpy_functions

__all__ = ["comparison", "indexing", "numpy_functions"]
