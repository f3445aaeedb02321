"""Sets are changed in any order, with rivals and killed writers, as a model of datasets is."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import xarray as xr
from daily_files import EPOCH, HOLDING, rival
from effort import times
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import virtualds
from virtualds import CombineError
from virtualds.stores.fence import Turn
from virtualds.stores.local import LocalStore

GROUPS = ("", "a", "a/b")
NAMES = ("t", "u", "v", "w")
LENGTH = 4
"""Positions of a file, two chunks of two."""
STORED: dict[str, dict[str, Any]] = {
    "plain": {},
    "compressed": {"zlib": True, "shuffle": True},
    "otherwise compressed": {"zlib": True, "shuffle": False},
    "packed": {"zlib": True, "dtype": "i2", "scale_factor": 0.01, "_FillValue": -9999},
    "in one piece": {"chunksizes": (4, 3)},
}
"""How files store their variables; formats that hold one encoding alone rewrite the others."""
REWRITE = {"on_unsupported": "rewrite"}
Model = dict[str, xr.Dataset]
"""The datasets of a set by group, as xarray holds them."""
Plan = Callable[[Model], Model]
PlanNew = Callable[[Model, xr.Dataset], Model]
Names = tuple[str, ...]
Fate = str | int
"""Of a writer: alone, with a rival, or killed after so many writes."""

WRITES = ("write_all", "write_version", "write_file", "write_folder", "remove")


class Killed(BaseException):
    """Stands for the end of a process."""


@contextmanager
def killed(before: int) -> Iterator[None]:
    """End the writer before one of its writes: from then on, it does nothing."""
    count = 0

    def ending(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count > before:
                raise Killed
            return method(*given, **more)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            patch.setattr(LocalStore, name, ending(getattr(LocalStore, name)))
        with suppress(Killed):
            yield


def file_of(folder: Path, number: int, first: int, names: Names, storage: str = "plain") -> Path:
    """A file of a few days, with some variables."""
    random = np.random.default_rng(number)
    time = np.datetime64("2000-01-01", "ns") + np.arange(first, first + LENGTH) * np.timedelta64(
        1, "D"
    )
    fields = {name: (("time", "x"), random.normal(size=(LENGTH, 3))) for name in names}
    ds = xr.Dataset(fields, {"time": time, "x": [1, 2, 3]})
    encoding: dict[str, Any] = {name: {"chunksizes": (2, 3)} | STORED[storage] for name in names}
    encoding["time"] = {"units": EPOCH, "dtype": "i8"}
    path = folder / f"{number}.nc"
    ds.to_netcdf(path, engine="netcdf4", encoding=encoding)
    return path


def extended(old: xr.Dataset, new: xr.Dataset) -> xr.Dataset:
    """What an append that fills makes of a group."""
    time = np.concatenate([old.time, new.time])
    found = {}
    for name in dict.fromkeys([*old.data_vars, *new.data_vars]):
        there = [ds[name] for ds in (old, new) if name in ds]
        found[name] = xr.concat(there, "time").reindex(time=time)
    return xr.Dataset(found, {"time": time, "x": old.x}, attrs=old.attrs)


def without(model: Model, group: str) -> Model:
    """The model without a group and those below it."""
    return {p: ds for p, ds in model.items() if p != group and not p.startswith(f"{group}/")}


class Changes(RuleBasedStateMachine):
    """A set, and what it should be."""

    suffix: ClassVar[str] = ""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.archive = self.folder / "archive"
        self.archive.mkdir()
        self.target = self.folder / f"refs{self.suffix}"
        self.model: Model = {}
        self.count = 0
        self.write("", ("t",), lambda model, new: {"": new}, "alone", mode="w")

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    # ------------------------------------------------------------------ one change

    def change(self, act: Callable[[], None], plan: Plan, fate: str | int = "alone") -> None:
        """Make a change: undisturbed, with a rival, or killed before one of its writes."""
        if self.suffix == ".icechunk":
            # who writes to a repository on local disk holds it, and Icechunk writes by itself
            fate = "alone"
        if fate == "rival":
            attributes = {"rival": self.count}

            def other() -> None:
                virtualds.edit(self.target, attributes=attributes)
                self.model[""] = self.model[""].assign_attrs(attributes)

            with rival(other, may_come_later=True):
                act()
        elif isinstance(fate, int):
            with killed(fate):
                act()
            if not self.is_as(plan(self.model)):
                # what a killed writer leaves is the old set
                return
        else:
            act()
        self.model = plan(self.model)

    def write(
        self, group: str, names: Names, plan: PlanNew, fate: Fate, stored: str = "plain", **how: Any
    ) -> None:
        """Write a new file to a group."""
        old = self.model.get(group)
        grows = "append_dim" in how
        first = old.sizes["time"] if old is not None and grows else 0
        self.count += 1
        path = file_of(self.archive, self.count, first, names, stored)
        new = virtualds.open_virtual_dataset(path)
        native = xr.load_dataset(path, engine="netcdf4")
        if old is not None and not grows and how["mode"] != "w":
            # as long as the group is by now
            places = np.arange(old.sizes["time"]) % LENGTH
            native = native.isel(time=places).assign_coords(time=old.time)
            new = native if old.sizes["time"] > LENGTH else new

        def act() -> None:
            new.virtual.to_manifest(self.target, group=group, conflict="retry", **how)

        self.change(act, lambda model: plan(model, native), fate)

    def is_as(self, model: Model) -> bool:
        found = self.open()
        return found.keys() == model.keys() and all(
            found[path].equals(dataset) for path, dataset in model.items()
        )

    def open(self) -> Model:
        groups = xr.open_groups(self.target, engine="virtual")
        found = {path.strip("/"): ds.load() for path, ds in groups.items()}
        # a group may be there for groups below it alone
        return {path: ds for path, ds in found.items() if ds.variables or not path}

    def draw_variable(self, data: st.DataObject) -> tuple[str, str]:
        """A group, and the name of one of its variables."""
        group = data.draw(st.sampled_from([p for p, ds in self.model.items() if ds.data_vars]))
        return group, str(data.draw(st.sampled_from(list(self.model[group].data_vars))))

    def draw_name(self, data: st.DataObject, group: str) -> str:
        return str(data.draw(st.sampled_from(list(self.model[group].data_vars))))

    def refers_to_archive(self) -> bool:
        """Say whether the set has references to the files, wherever they lie by now."""
        found = [
            virtualds.open_virtual_dataset(self.target, group=group, loadable_variables=[])
            for group in self.model
        ]
        urls = [url for ds in found for url in ds.virtual.sources["url"]]
        return any(url.startswith(f"{self.archive.as_uri()}/") for url in urls)

    def choices(self, stored: str) -> st.SearchStrategy[dict[str, Any]]:
        found: list[dict[str, Any]] = [{}]
        if self.suffix != ".icechunk":
            found += [{"inline_threshold": 40}, {"inline_threshold": 400}]
        if stored in ("plain", "in one piece"):
            found.append({"subchunk": {"time": 1}})
        return st.sampled_from(found)

    # ------------------------------------------------------------------ the changes

    LONE = st.sampled_from(["alone", "alone", 0, 1, 2, 3])
    KINDS = st.sampled_from(list(STORED))
    FATES = st.sampled_from(["alone", "alone", "rival", 0, 1, 2, 3])
    SOME = st.sets(st.sampled_from(NAMES), min_size=1, max_size=2).map(sorted).map(tuple)
    has_variables = precondition(lambda self: any(ds.data_vars for ds in self.model.values()))

    @rule(group=st.sampled_from(GROUPS), names=SOME, fate=FATES, stored=KINDS, data=st.data())
    def append(
        self, group: str, names: Names, fate: Fate, stored: str, data: st.DataObject
    ) -> None:
        def plan(model: Model, new: xr.Dataset) -> Model:
            old = model.get(group)
            return model | {group: new if old is None else extended(old, new)}

        how = {"new_variables": "fill", "missing_variables": "fill", "append_dim": "time"}
        how |= REWRITE | data.draw(self.choices(stored))
        self.write(group, names, plan, fate, stored, **how)

    @rule(group=st.sampled_from(GROUPS), names=SOME, fate=FATES)
    def add(self, group: str, names: Names, fate: Fate) -> None:
        def plan(model: Model, new: xr.Dataset) -> Model:
            old = model.get(group)
            return model | {group: new if old is None else old.assign(new.data_vars)}

        self.write(group, names, plan, fate, mode="a", on_duplicate="replace")

    @rule(group=st.sampled_from(GROUPS[1:]), names=SOME, fate=FATES)
    def replace_group(self, group: str, names: Names, fate: Fate) -> None:
        def plan(model: Model, new: xr.Dataset) -> Model:
            return without(model, group) | {group: new}

        self.write(group, names, plan, fate, mode="w")

    @has_variables
    @rule(data=st.data(), fate=FATES)
    def overwrite(self, data: st.DataObject, fate: Fate) -> None:
        group, name = self.draw_variable(data)

        def plan(model: Model, new: xr.Dataset) -> Model:
            return model | {group: model[group].assign(new.data_vars)}

        self.write(group, (name,), plan, fate, mode="r+")

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data(), fate=FATES)
    def drop_group(self, data: st.DataObject, fate: Fate) -> None:
        group = data.draw(st.sampled_from([path for path in self.model if path]))

        def act() -> None:
            virtualds.edit(self.target, drop_groups=group, conflict="retry")

        self.change(act, lambda model: without(model, group), fate)

    @has_variables
    @rule(data=st.data(), fate=FATES)
    def rename_or_drop(self, data: st.DataObject, fate: Fate) -> None:
        group, name = self.draw_variable(data)
        free = [other for other in NAMES if other not in self.model[group]]
        new = data.draw(st.sampled_from([None, *free]))
        how: dict[str, Any] = {"rename": {name: new}} if new else {"drop_variables": name}

        def act() -> None:
            virtualds.edit(self.target, group=group, conflict="retry", **how)

        def plan(model: Model) -> Model:
            old = model[group]
            return model | {group: old.rename({name: new}) if new else old.drop_vars(name)}

        self.change(act, plan, fate)

    @rule(group=st.sampled_from(GROUPS), names=SOME, fate=FATES, stored=KINDS)
    def replace_by_template(self, group: str, names: Names, fate: Fate, stored: str) -> None:
        self.count += 1
        path = file_of(self.archive, self.count, 0, names, stored)
        days = np.datetime64("2000-01-01", "ns") + np.arange(12) * np.timedelta64(1, "D")
        whole = virtualds.template(virtualds.open_virtual_dataset(path), {"time": days})
        empty = xr.load_dataset(path, engine="netcdf4").isel(time=[]).reindex(time=days)

        def act() -> None:
            whole.virtual.to_manifest(self.target, group=group, mode="w", conflict="retry")

        def plan(model: Model) -> Model:
            return (without(model, group) if group else {}) | {group: empty}

        self.change(act, plan, fate)

    @has_variables
    @rule(
        data=st.data(), fate=FATES, stored=KINDS, on_duplicate=st.sampled_from(["skip", "replace"])
    )
    def fill_region(self, data: st.DataObject, fate: Fate, stored: str, on_duplicate: str) -> None:
        group, name = self.draw_variable(data)
        names = tuple({name, self.draw_name(data, group)})
        places = (self.model[group].sizes["time"] - LENGTH) // 4
        first = 4 * data.draw(st.integers(0, places))
        self.count += 1
        path = file_of(self.archive, self.count, first, names, stored)
        new = virtualds.open_virtual_dataset(path)
        native = xr.load_dataset(path, engine="netcdf4")
        how = dict(region={"time": "auto"}, on_duplicate=on_duplicate, **REWRITE)

        refused = False

        def act() -> None:
            nonlocal refused
            try:
                new.virtual.to_manifest(self.target, group=group, conflict="retry", **how)
            except CombineError as error:
                # what stays, and is stored in another way, cannot stand beside
                refused = on_duplicate == "skip" and "side by side" in str(error)
                if not refused:
                    raise

        def plan(model: Model) -> Model:
            if refused:
                return model
            old = model[group].copy(deep=True)
            for one in names:
                there = old[one].values[first : first + LENGTH]
                kept = ~np.isnan(there) if on_duplicate == "skip" else np.zeros(1, bool)
                there[:] = np.where(kept, there, native[one].values)
            return model | {group: old}

        self.change(act, plan, fate)

    @rule(fate=LONE)
    def compact(self, fate: Fate) -> None:
        def act() -> None:
            virtualds.compact(self.target, conflict="retry")

        self.change(act, lambda model: model, fate)

    @rule(fate=LONE)
    def rename_paths(self, fate: Fate) -> None:
        if not self.refers_to_archive():
            return
        old = self.archive
        self.count += 1
        self.archive = self.folder / f"archive{self.count}"
        shutil.copytree(old, self.archive)

        def act() -> None:
            change = {f"{old.as_uri()}/": f"{self.archive.as_uri()}/"}
            virtualds.rename_paths(self.target, change, conflict="retry")

        self.change(act, lambda model: model, fate)
        if isinstance(fate, int):
            # nobody knows which of the folders the set refers to
            act_again = not self.refers_to_archive()
            if act_again:
                act()
        shutil.rmtree(old)

    @precondition(lambda self: self.suffix == ".zarr")
    @rule()
    def expire_snapshots(self) -> None:
        virtualds.expire_snapshots(self.target, keep=1)

    @rule(other=st.sampled_from(list(HOLDING)))
    def convert(self, other: str) -> None:
        """A set of another format has the same values, and becomes this set again."""
        self.count += 1
        between = self.folder / f"other{self.count}{HOLDING[other]}"
        virtualds.convert(self.target, between, **REWRITE)
        virtualds.convert(between, self.target, mode="w", **REWRITE)
        self.kept = between

    # ------------------------------------------------------------------ what holds

    @invariant()
    def the_set_is_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        found = self.open()
        assert found.keys() == self.model.keys()
        for path, dataset in self.model.items():
            xr.testing.assert_equal(found[path], dataset)
            assert found[path].attrs.get("rival") == dataset.attrs.get("rival")


@pytest.mark.parametrize("examples", [1, pytest.param(times(5), marks=pytest.mark.full)])
@pytest.mark.parametrize("form", HOLDING)
def test_any_order_of_changes_is_what_the_model_is(
    form: str, examples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one that was killed has left its turn, for which others wait
    monkeypatch.setattr(Turn, "TURN_SECONDS", 0.2)
    machine = type("ChangesOf", (Changes,), {"suffix": HOLDING[form]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=8,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            # a failure is told by its steps; to shorten them takes minutes
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
