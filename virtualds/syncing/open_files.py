"""Opening the files that a set lacks, as one dataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from virtualds.arrays.group import ManifestGroup
from virtualds.combine import open_virtual_mfdataset
from virtualds.combine.batch_job import OPEN_ERRORS, BuildOptions
from virtualds.combine.report import BuildReport, LeftOut
from virtualds.datasets.keywords import names_of
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group
from virtualds.datasets.open_options import OpenOptions, demand_variables, make_optional
from virtualds.datasets.source_positions import urls_of
from virtualds.errors import CombineError, UnsupportedError, without_secrets
from virtualds.progress import Progress, report_progress
from virtualds.stores.access_rules import demand_nameable

Urls = tuple[str, ...]


class FileOpener:
    """Opens files as one dataset, the same files once, as `open_virtual_mfdataset` does."""

    def __init__(self, dim: str, options: Mapping[str, Any]) -> None:
        self._loadable = options.get("loadable_variables")
        # the new files need not have what the set has
        optional = {"loadable_variables": make_optional(self._loadable)}
        self._options = {"combine": "nested", **options, **optional, "concat_dim": dim}
        building = BuildOptions(on_error=options.get("on_error", "raise"))
        self._stops = building.stops
        self._opened: dict[Urls, xr.Dataset | None] = {}
        self._examples: dict[Urls, Urls] = {}
        self.failed: dict[str, LeftOut] = {}
        self.damaged: tuple[LeftOut, ...] = ()

    def open(self, urls: Urls) -> xr.Dataset | None:
        """Return the dataset of some files, None if none of them can be opened."""
        if urls and urls not in self._opened:
            self._opened[urls] = self._open(urls)
        return self._opened.get(urls)

    def demand_loaded(self, group: ManifestGroup) -> ManifestGroup:
        """Refuse names in ``loadable_variables`` that neither the set nor a file has."""
        if not self.failed and self._options.get("preprocess") is None:
            dropped = names_of("drop_variables", self._options.get("drop_variables"))
            demand_variables(self._loadable, group.variables, dropped, "the set or its files")
        return group

    def _open(self, given: Urls) -> xr.Dataset | None:
        urls = tuple(url for url in given if self._is_nameable(url))
        if not urls:
            return None
        reports: list[BuildReport] = []
        with report_progress(self._options.get("progress"), "opening", len(urls)) as show:

            def hear(progress: Progress) -> None:
                show(progress)
                if progress.report is not None:
                    reports.append(progress.report)

            try:
                found = open_virtual_mfdataset(list(urls), **{**self._options, "progress": hear})
            except OPEN_ERRORS:
                nothing = any(len(report.left_out) == report.files for report in reports)
                if self._stops or not nothing:
                    raise
                found = None
        self._examples[given] = tuple(schema.first for schema in reports[-1].schemas)
        self.failed |= {lost.url: lost for lost in reports[-1].left_out}
        self.damaged += reports[-1].damaged
        if found is not None:
            _demand_own_data(found, urls)
        return found

    def _is_nameable(self, url: str) -> bool:
        """Say whether a set may name a file; if not, it is left out, or stops the run."""
        try:
            demand_nameable(url)
        except UnsupportedError as error:
            if self._stops:
                raise
            self.failed[url] = LeftOut.of(url, error)
            return False
        return True

    def list_examples(self, urls: Urls) -> Urls:
        """Return one file of each schema that the opened files have."""
        found = self._examples.get(urls, urls[:1])
        return tuple(url for url in found if url in urls)

    def explain_dimensions(self, urls: Urls, opened: xr.Dataset) -> CombineError:
        """Return the error of files without the dimension, with the groups that have it."""
        names = ("parser", "parser_options", "allow")
        how = {name: self._options[name] for name in names if name in self._options}
        first = next(url for url in urls if url not in self.failed)
        location = Location.of(first, self._options.get("storage_options"))
        groups = {
            f"/{path}": sorted({dim for v in part.variables.values() for dim in v.dims})
            for path, part in open_group(location, OpenOptions(below=True, **how)).walk()
            if path and part.variables
        }
        dim, dims = self._options["concat_dim"], sorted(map(str, opened.dims))
        having = [path for path, there in groups.items() if dim in there]
        there, remedy = f"{dims}", "name one of these"
        if having:
            there, remedy = f"{dims}, and it in {having}", f"pass group={having[0]!r}"
        elif groups:
            there, remedy = f"{dims}, and in groups {groups}", "name one, and its group="
        return CombineError(f"concat_dim {dim!r}: the files have {there}; {remedy}")


def _demand_own_data(found: xr.Dataset, urls: Urls) -> None:
    """Refuse files that refer to others: the set would know those, and not the files themselves."""
    others = sorted(urls_of(found) - set(urls))
    if others:
        raise UnsupportedError(
            f"{without_secrets(urls[0])} and the files after it refer to data in other files, such "
            f"as {without_secrets(others[0])}; sync keeps track of files that hold their own data. "
            f"Append these with ds.virtual.to_manifest(..., append_dim=...)"
        )
