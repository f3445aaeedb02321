"""Virtual arrays, and the variables and groups that contain them.

Three modules register numpy functions for virtual arrays, so they are imported with any of the
others.
"""

from virtualds.arrays import comparison, numpy_functions

__all__ = ["comparison", "indexing", "numpy_functions"]
