"""Virtual arrays, and variables and groups of them.

The module that registers numpy functions for virtual arrays is imported with any of the others.
"""

from virtualds.arrays import numpy_functions

__all__ = ["numpy_functions"]
