"""The parser for ENVI in the docs reads what GDAL reads."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from envi_scenes import CODES, SHAPES, install, written

import virtualds
from virtualds.datasets.location import load_plugins


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("interleave", SHAPES)
def test_the_example_of_the_docs_reads_what_gdal_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interleave: str, code: int
) -> None:
    rasterio = pytest.importorskip("rasterio")
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    load_plugins.cache_clear()
    written(tmp_path, interleave, code, 1)
    found = virtualds.open_virtual_dataset(tmp_path / "scene.hdr", parser="envi").image
    with warnings.catch_warnings():
        # a scene without a place on the globe
        warnings.simplefilter("ignore")
        with rasterio.open(tmp_path / "scene.dat") as native:
            np.testing.assert_array_equal(found.transpose("band", "y", "x").values, native.read())
    load_plugins.cache_clear()
