"""Breaks of the protocol: each changes one step of the code that ships.

A checker that finds none of them would prove nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from protocol import scenarios
from protocol.explorer import ask, get_notes, name_actor
from protocol.invariants import (
    FALSE_CONFLICT,
    HARMLESS,
    LOST,
    NOT_TOLD,
    OLD_OR_NEW,
    REASON,
    STEP,
    TOLD,
    WHOLE,
)
from protocol.scenarios import ETAGS, ON_DISK, Scenario
from protocol.simulated_store import Locked, ObjectFilesystem, SimulatedStore

from virtualds.errors import ConflictError
from virtualds.formats import zarr_manifests
from virtualds.formats.kerchunk.records import RecordFolder
from virtualds.formats.zarr_manifests import snapshots
from virtualds.formats.zarr_manifests.write_snapshot import SnapshotWriter
from virtualds.stores import conditional, fence, find_store
from virtualds.stores.conditional import FileVersion, ObjectVersioning
from virtualds.stores.fence import WriteLease
from virtualds.stores.store import ChangedError, RequestError

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Break:
    """A break of the protocol, where it shows, and the invariants of which one is broken first."""

    name: str
    scenario: Scenario
    apply: Callable[[Patch], None]
    broken: tuple[str, ...]


BREAKS: list[Break] = []


def breaks(
    form: str, act: str, *broken: str, way: str = ETAGS, **how: Any
) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """List a break, which shows in a scenario."""

    def note(apply: Callable[[Patch], None]) -> Callable[[Patch], None]:
        name = apply.__name__.replace("_", " ")
        BREAKS.append(Break(name, Scenario(form, way, act, **how), apply, broken))
        return apply

    return note


# ---------------------------------------------------------------------- conditions


@breaks("kerchunk-json", "append", LOST, faults=0)
def a_condition_is_not_sent(patch: Patch) -> None:
    def put_conditionally(self: Any, path: str, data: bytes, *condition: Any) -> str:
        return str(self.put_object(path, data))

    patch.setattr(ObjectFilesystem, "put_conditionally", put_conditionally)


@breaks("zarr-v3", "append", LOST, faults=0)
def a_version_is_compared_before_the_write_and_not_with_it(patch: Patch) -> None:
    patch.setattr(ObjectVersioning, "write", ObjectVersioning.check_and_write)


@breaks("zarr-v3", "append", LOST, faults=0)
def a_version_is_asked_for_after_the_bytes_that_it_names(patch: Patch) -> None:
    def read_with_version(self: Any, path: str) -> tuple[bytes, str]:
        return ask("GET", path)[0], self.find_writer(path)[1]

    patch.setattr(ObjectFilesystem, "read_with_version", read_with_version)


@breaks("kerchunk-json", "append", LOST, way="a lock", faults=0)
def a_lock_is_not_taken(patch: Patch) -> None:
    patch.setattr(Locked, "write", Locked.check_and_write)


@breaks("kerchunk-parquet", "create", LOST, STEP, WHOLE, faults=0)
def a_set_is_created_without_the_condition_that_there_is_none(patch: Patch) -> None:
    send = ObjectFilesystem.put_conditionally

    def put_conditionally(self: Any, path: str, data: bytes, expected: Any, writer: str) -> str:
        if expected is None:
            return str(self.put_object(path, data))
        return send(self, path, data, expected, writer)

    patch.setattr(ObjectFilesystem, "put_conditionally", put_conditionally)


# ---------------------------------------------------------------------- lost answers


@breaks("kerchunk-json", "append", NOT_TOLD, FALSE_CONFLICT)
def a_writer_does_not_look_for_its_own_write(patch: Patch) -> None:
    patch.setattr(ObjectFilesystem, "find_writer", lambda self, path: (None, ""))


@breaks("kerchunk-json", "append", NOT_TOLD)
def a_write_that_others_built_upon_is_forgotten(patch: Patch) -> None:
    patch.setattr(conditional, "MAX_WRITE_IDS", 1)


@breaks("kerchunk-parquet", "append", WHOLE, LOST, ticks=1)
def a_fence_that_others_replaced_is_taken_for_one_that_stands(patch: Patch) -> None:
    patch.setattr(
        FileVersion, "replaced", classmethod(lambda cls, write: cls(ask("HEAD", _marker())[1]))
    )


def _marker() -> str:
    return "simulated://bucket/set.parquet/.zmetadata"


@breaks("zarr-v3", "append", WHOLE, NOT_TOLD)
def a_lost_answer_is_taken_for_a_refusal(patch: Patch) -> None:
    write = SimulatedStore.write_version

    def write_version(self: Any, url: str, data: bytes, options: Any, expected: Any) -> str:
        try:
            return write(self, url, data, options, expected)
        except RequestError as error:
            raise ChangedError(str(error)) from error

    patch.setattr(SimulatedStore, "write_version", write_version)
    patch.setattr("virtualds.formats.zarr_manifests.snapshots._has_committed", lambda *some: False)


@breaks("kerchunk-json", "append", TOLD)
def a_lost_answer_is_taken_for_success(patch: Patch) -> None:
    write = SimulatedStore.write_version

    def write_version(self: Any, url: str, data: bytes, options: Any, expected: Any) -> str:
        with suppress(RequestError):
            return write(self, url, data, options, expected)
        return ""

    patch.setattr(SimulatedStore, "write_version", write_version)


# ---------------------------------------------------------------------- order


@breaks("zarr-v3", "append", WHOLE, faults=0)
def a_marker_is_written_before_the_files_that_it_names(patch: Patch) -> None:
    put, write = SimulatedStore.write_file, SimulatedStore.write_version

    def write_file(self: Any, *what: Any) -> None:
        get_notes().setdefault("files", []).append(what)

    def write_version(self: Any, *what: Any) -> str:
        version = write(self, *what)
        for one in get_notes().pop("files", ()):
            put(self, *one)
        return version

    patch.setattr(SimulatedStore, "write_file", write_file)
    patch.setattr(SimulatedStore, "write_version", write_version)


@breaks("kerchunk-parquet", "create", WHOLE, STEP, faults=0)
def a_set_is_created_marker_first(patch: Patch) -> None:
    create = fence.create_folder

    def create_folder(root: str, marker: str, files: Iterable[Any], options: Any) -> None:
        create(root, marker, sorted(files, key=lambda file: file[0] != marker), options)

    patch.setattr("virtualds.formats.kerchunk.parquet.create_folder", create_folder)


@breaks("zarr-v3", "append", WHOLE, OLD_OR_NEW, REASON, faults=0)
def files_go_while_readers_of_the_old_set_may_come(patch: Patch) -> None:
    write = SimulatedStore.write_version

    def write_version(self: Any, url: str, *what: Any) -> str:
        version = write(self, url, *what)
        if name_actor() in ("A", "B"):
            self.remove([url.replace("/zarr.json", "/v/c/0")], None)
        return version

    patch.setattr(SimulatedStore, "write_version", write_version)


@breaks("zarr-v3", "append", LOST, WHOLE, OLD_OR_NEW, faults=0)
def two_writers_name_their_files_alike(patch: Patch) -> None:
    patch.setattr(secrets, "token_hex", lambda length=16: "0" * 2 * length)


@breaks("zarr-v3", "create", HARMLESS, REASON)
def a_writer_does_not_say_that_it_has_begun(patch: Patch) -> None:
    put = SimulatedStore.write_file

    def write_file(self: Any, url: str, *what: Any) -> None:
        if not url.endswith("/begun"):
            put(self, url, *what)

    patch.setattr(SimulatedStore, "write_file", write_file)


@breaks("zarr-v3", "replace", HARMLESS, REASON)
def a_failed_writer_removes_first_what_says_whose_the_files_are(patch: Patch) -> None:
    remove = SimulatedStore.remove

    def remove_sorted(self: Any, urls: Iterable[str], options: Any) -> None:
        remove(self, sorted(urls, key=lambda url: not url.endswith("/begun")), options)

    begin = SnapshotWriter.write

    def write(self: Any, group: Any) -> Any:
        try:
            return begin(self, group)
        finally:
            # as one list, in which it comes first
            self.written, self._begun = [*self._begun, *self.written], []

    patch.setattr(SimulatedStore, "remove", remove_sorted)
    patch.setattr(SnapshotWriter, "write", write)


@breaks("zarr-v3", "append", WHOLE)
def a_writer_without_an_answer_removes_its_files(patch: Patch) -> None:
    # as this library did
    commit = zarr_manifests.commit_document

    def commit_document(*what: Any) -> None:
        try:
            commit(*what)
        except RequestError as error:
            raise ConflictError(str(error)) from error

    patch.setattr(zarr_manifests, "commit_document", commit_document)


@breaks("zarr-v3", "build and append", WHOLE)
def a_builder_without_an_answer_removes_its_parts(patch: Patch) -> None:
    # as this library did
    def abandon_parts(place: Any) -> None:
        found = zarr_manifests.find_set(place.root, place.options)
        known = []
        if found is not None:
            known = snapshots.list_snapshots(place.root, place.options, found.document)
        if place.snapshot not in dict(known):
            zarr_manifests.remove_parts(place, is_set=found is not None)

    patch.setattr(zarr_manifests, "abandon_parts", abandon_parts)


@breaks("zarr-v3", "expire and append", WHOLE, LOST, faults=0)
def files_of_a_writer_at_work_are_taken_for_waste(patch: Patch) -> None:
    patch.setattr(scenarios, "Expiry", partial(scenarios.Expiry, grace=timedelta(days=-1)))


@breaks("zarr-v3", "expire and append", WHOLE, OLD_OR_NEW, LOST, faults=0)
def files_go_before_the_snapshots_that_need_them(patch: Patch) -> None:
    swap = snapshots.commit_document

    def swap_late(root: str, options: Any, document: Any, version: Any) -> None:
        old = [path for path, _, _ in ask("LIST", root) if path.startswith("v/c")]
        find_store(root).remove([f"{root}/{path}" for path in old], options)
        swap(root, options, document, version)

    patch.setattr(snapshots, "commit_document", swap_late)


@breaks("kerchunk-parquet", "replace", OLD_OR_NEW, way=ON_DISK, faults=0)
def a_record_of_another_writing_is_taken_for_one_of_the_set(patch: Patch) -> None:
    def read(self: Any, url: str) -> Any:
        return self.parse(find_store(url).read_all(url, self.source.options), url)

    patch.setattr(RecordFolder, "_fetch_record", read)


# ---------------------------------------------------------------------- fences


@breaks("kerchunk-parquet", "append", WHOLE, LOST, STEP, faults=0, ticks=1)
def a_writer_sets_no_fence(patch: Patch) -> None:
    replace = WriteLease.replace_marker

    def replace_marker(self: Any, data: bytes) -> None:
        if b'"displaced"' not in data:
            replace(self, data)

    patch.setattr(WriteLease, "replace_marker", replace_marker)


@breaks("kerchunk-parquet", "append", WHOLE, LOST, STEP, faults=0, ticks=1)
def a_writer_does_not_look_whether_its_fence_stands(patch: Patch) -> None:
    patch.setattr(WriteLease, "is_current", lambda self: True)


@breaks("kerchunk-parquet", "append", WHOLE, LOST, STEP, faults=0, ticks=1)
def the_versions_of_records_are_read_after_the_fence(patch: Patch) -> None:
    put = WriteLease.put

    def put_late(self: Any, path: str, data: bytes) -> None:
        self._versions[path] = self._store.find_version(f"{self._root}/{path}", self._options)
        put(self, path, data)

    patch.setattr(WriteLease, "put", put_late)


@breaks("kerchunk-parquet", "append again", WHOLE, LOST, STEP, faults=0, ticks=2)
def a_fence_is_looked_at_before_the_version_of_a_record(patch: Patch) -> None:
    def put(self: Any, path: str, data: bytes) -> None:
        url = f"{self._root}/{path}"
        while True:
            try:
                self._store.write_version(url, data, self._options, self._versions.get(path))
                return
            except ChangedError as error:
                if not self.is_current():
                    raise fence.make_conflict_error(self._root) from error
                self._versions[path] = self._store.find_version(url, self._options)

    patch.setattr(WriteLease, "put", put)


@breaks("kerchunk-parquet", "create", WHOLE, LOST, STEP, faults=0, ticks=1)
def a_creator_claims_nothing(patch: Patch) -> None:
    replace = WriteLease.replace_marker

    def replace_marker(self: Any, data: bytes) -> None:
        if not fence.is_claim(data):
            replace(self, data)

    patch.setattr(WriteLease, "replace_marker", replace_marker)


@breaks("kerchunk-parquet", "append", HARMLESS, ticks=0)
def a_fence_stands_for_ever(patch: Patch) -> None:
    patch.setattr(fence, "WAIT_SECONDS", 1e9)
    patch.setattr(fence, "MAX_WAIT", 1e9)
