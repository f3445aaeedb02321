"""The members of HDF5 groups, and what datasets are, as the HDF5 library gives them.

It reads the files that `members` declines, and all files with ``set_options(hdf5="library")``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from virtualds.errors import FormatError, VirtualdsError
from virtualds.parsers.hdf5.data_types import encode_type
from virtualds.parsers.hdf5.dataspace import Dataspace
from virtualds.parsers.hdf5.file import HDF5Files, describe_damage, find_referenced_file
from virtualds.parsers.hdf5.fill_values import FillValue
from virtualds.parsers.hdf5.members import no_target_error
from virtualds.parsers.hdf5.objects import (
    Dataset,
    DatasetFacts,
    GroupMembers,
    HDF5Location,
    no_group_error,
)
from virtualds.source_file import SourceFile
