"""Virtual arrays, and the variables and groups that hold them.

Three modules fill the table of what numpy does with an array, for whoever imports an array first.
"""

from virtualds.arrays import comparison, numpy_functions

__all__ = ["comparison", "indexing", "numpy_functions"]
