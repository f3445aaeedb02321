"""Targets of writing: an Icechunk repository at a url, or a session that the user opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from virtualds.errors import ConflictError, cannot_hold
from virtualds.formats.icechunk.locations import ObjectLocation, find_containers, find_storage
from virtualds.formats.icechunk.references import CHUNKS, import_adapter
from virtualds.formats.zarr.v3_arrays import axes_from_v3
from virtualds.formats.zarr.write_plan import PlannedArray, WritePlan
from virtualds.source_file import StorageOptions
from virtualds.stores import find_store
from virtualds.stores.local import hold_lock, lock_of

MAIN = "main"
SPLIT_REFERENCES = 2**15
"""References of one manifest of an array, about: an append writes no more than these again."""
MOST_SPLITS = 32
"""Manifests of an array that one commit writes: Icechunk looks through all references for each."""


# ---------------------------------------------------------------------- what a plan needs


class Split(NamedTuple):
    """Along which axis the manifests of an array are split, and every how many chunks."""

    axis: int
    chunks: int


class Needs(NamedTuple):
    """What the configuration of a repository has to say before references are written.

    Places of files by the prefix of their urls, and splits by the path of an array.
    """

    containers: Mapping[str, ObjectLocation]
    splits: Mapping[str, Split]


NOTHING_NEEDED = Needs({}, {})


def list_needs(
    planned: WritePlan,
    is_own: Callable[[str], bool],
    is_there: Callable[[Any], bool],
    nodes: Mapping[str, Any] | None = None,
) -> Needs:
    """Return what a plan needs.

    Parameters
    ----------
    planned : WritePlan
    is_own : callable
        Takes a url; says whether the file belongs to the repository.
    is_there : callable
        Takes a manifest; says whether the repository has its references already.
    nodes : mapping, optional
        The metadata of what is there, by path.
    """
    arrays = {p: n for p, n in planned.nodes.items() if isinstance(n, PlannedArray)}
    parts = (part for node in arrays.values() for part in node.parts)
    files = (file for p in parts if not is_there(p.manifest) for file in p.manifest.sources)
    outside = dict.fromkeys(file for file in files if not is_own(file.url))
    places = find_containers((file.url, file.options) for file in outside)
    return Needs(places, dict(_list_splits(planned, arrays, nodes or {})))


def _list_splits(
    planned: WritePlan, arrays: Mapping[str, PlannedArray], nodes: Mapping[str, Any]
) -> Iterator[tuple[str, Split]]:
    for path, node in arrays.items():
        grid = count_chunks(node.metadata)
        if not grid or not node.parts:
            continue
        group = planned.notes.get("groups", {}).get(path.rpartition("/")[0], {})
        axis = _find_growing(grid, node.metadata, nodes.get(path), group)
        around = max(prod(grid) // max(grid[axis], 1), 1)
        # rounded up, so that there are no more than these
        few = -(-grid[axis] // MOST_SPLITS)
        yield path, Split(axis, max(1, SPLIT_REFERENCES // around, few))


def _find_growing(
    grid: tuple[int, ...], metadata: Mapping[str, Any], there: Any, group: Mapping[str, Any]
) -> int:
    """Return the axis that grows: now, or later where a file says so; else the first one."""
    if there is not None and "chunk_grid" in there:
        before = count_chunks(there)
        grown = [i for i, (n, m) in enumerate(zip(before, grid, strict=False)) if n < m]
        if grown:
            return grown[0]
    unlimited = group.get("unlimited_dims", ())
    names = metadata.get("dimension_names") or ()
    return next((axis for axis, name in enumerate(names) if name in unlimited), 0)


def count_chunks(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the chunks per axis of an array."""
    axes = axes_from_v3(metadata["shape"], metadata["chunk_grid"])
    return tuple(axis.nchunks for axis in axes)


# ---------------------------------------------------------------------- other writers


@contextmanager
def exclude_other_writers(
    place: ObjectLocation | None, url: str, options: StorageOptions | None
) -> Iterator[None]:
    """Exclude unnoticed commits of other writers of one repository during the block.

    Icechunk commits by a conditional write. Local disk has none, so a lock keeps our own writers
    apart. A server of an object store may ignore conditions, so it must first prove that it keeps
    them. The place of an object of Icechunk is unknown; its owner is responsible.

    Raises
    ------
    UnsupportedError
        The server ignores conditional writes, or the filesystem has no locks.
    """
    if place is not None and place.kind == "local":
        path = os.path.realpath(place.arguments["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with hold_lock(lock_of(path)):
            yield
        return
    if place is not None and place.kind in ("s3", "gcs", "azure"):
        find_store(url).demand_conditions(url, options)
    yield


# ---------------------------------------------------------------------- the target


def is_occupied(url: Any, options: StorageOptions | None = None, **where: Any) -> bool:
    """Refuse a branch or session that holds nodes; return False if it is empty.

    Raises
    ------
    FileExistsError
        It holds nodes, which the error lists.
    """
    target = Target.of(url, options, **where)
    if target.place is not None and not target.exists():
        return False
    with target.whole_branch(keep=False):
        if nodes := target.open_store().read_documents():
            raise occupied_error(target, nodes)
    return False


def occupied_error(target: Target, nodes: Mapping[str, Any]) -> FileExistsError:
    """Return the error that lists the existing arrays, which a write would remove."""
    arrays = sorted(path for path, node in nodes.items() if node.get("node_type") == "array")
    named = ", ".join(arrays[:5]) + (", ..." if len(arrays) > 5 else "")
    return FileExistsError(
        f"{target.name}: exists already; mode='w' removes from the branch {target.branch!r} all "
        f"that it holds, {len(arrays)} arrays ({named}), whoever wrote them, and keeps it in "
        f"earlier snapshots alone; append_dim= appends to them, and branch= writes to another "
        f"branch"
    )


@dataclass
class Target:
    """A repository at a url, or an object of Icechunk, to write to.

    Parameters
    ----------
    place : ObjectLocation or None
        Of the repository; None for an object.
    given : object
        The object, or the repository once it is open.
    root : str or None
        Url of the repository.
    name : str
        For errors.
    branch : str
    options : StorageOptions, optional
    config : icechunk.RepositoryConfig, optional
        Is saved in the repository.
    create_branch : bool
        Whether a branch that does not exist begins where ``main`` is; it goes if writing fails.
    takes_in : str, optional
        Url of a folder whose chunks become chunks of the repository.
    """

    place: ObjectLocation | None
    given: Any
    root: str | None
    name: str
    branch: str
    options: StorageOptions | None = None
    config: Any = None
    create_branch: bool = False
    takes_in: str | None = None
    begun: bool = False

    @classmethod
    def of(
        cls, url: Any, options: StorageOptions | None, branch: str = MAIN, **more: Any
    ) -> Target:
        """Return the target that a user names.

        Raises
        ------
        ValueError
            A session has another branch, or an object a configuration of its own.
        TypeError
            The configuration is none of Icechunk's.
        """
        config = more.get("config")
        import_adapter().check_config(config)
        if isinstance(url, str):
            root = url.rstrip("/")
            return cls(find_storage(root, options), None, root, root, branch, options, **more)
        if branch != MAIN and not import_adapter().is_committed_here(url):
            raise ValueError(f"branch {branch!r}: a session has its own; leave it out")
        if config is not None:
            raise ValueError("config: an open repository has its own; leave it out")
        return cls(None, url, None, f"{type(url).__name__} of Icechunk", branch, **more)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other writers in the block, and keep a branch that began in it if it succeeds."""
        with exclude_other_writers(self.place, self.name, self.options), self.whole_branch():
            yield

    @contextmanager
    def whole_branch(self, *, keep: bool = True) -> Iterator[None]:
        """Remove a branch that began in the block, if the block fails or it is not to be kept."""
        done = False
        try:
            yield
            done = True
        finally:
            if self.begun and not (done and keep):
                import_adapter().remove_branch(self.given, self.branch, self.name)
                self.begun = False

    @property
    def committed(self) -> Any:
        """The repository that virtualds commits to; None for a session, which its owner commits."""
        return self.given if import_adapter().is_committed_here(self.given) else None

    def exists(self) -> bool:
        """Say whether there is a repository."""
        return self.place is None or bool(import_adapter().is_repository(self.place, self.name))

    def open_store(
        self, needed: Needs = NOTHING_NEEDED, before: Any = None, *, begins: bool = True
    ) -> Any:
        """Return a store to write to, of a repository whose configuration has what is needed.

        Parameters
        ----------
        needed : Needs
        before : OpenStore, optional
            A store opened before: the new one must begin with the same snapshot.
        begins : bool
            Whether a branch that is to be created is; if not, the store is that of ``main``.
        """
        if self.place is not None:
            if self.exists():
                repository = import_adapter().open_repository(self.place, self.name, self.config)
                self.given = import_adapter().configure(repository, self.name, needed)
            else:
                self.given = import_adapter().create_repository(
                    self.place, self.name, needed, self.config
                )
        else:
            self._check(needed.containers)
            if before is not None:
                return before
        branch, adapter = self.branch, import_adapter()
        if self.create_branch and self.committed is not None:
            if begins:
                self.begun |= adapter.begin_branch(self.given, branch, MAIN, self.name)
            elif not adapter.has_branch(self.given, branch, self.name):
                branch = MAIN
        store = adapter.open_writable_store(self.given, branch, self.name)
        if before is not None and store.snapshot != before.snapshot:
            raise ConflictError(
                f"{self.name}: another writer has committed meanwhile; write again to what is "
                f"there now"
            )
        return store

    def _check(self, needed: Mapping[str, ObjectLocation]) -> None:
        """Refuse references that no container of the user's own repository covers."""
        config = self.given.config if hasattr(self.given, "config") else self.given.session.config
        if lacking := import_adapter().list_uncovered(config, needed):
            known = import_adapter().list_containers(config)
            raise cannot_hold(
                self.name,
                "it",
                [
                    f"files below {prefix}: no virtual chunk container covers them, only {known}"
                    for prefix in lacking
                ],
                f"call config.set_virtual_chunk_container(icechunk.VirtualChunkContainer("
                f"{lacking[0]!r}, ...)), save the configuration and open the repository with it; "
                f"or write to the url of the repository, and virtualds sets them up",
            )

    def commit(self, store: Any, message: str, metadata: Mapping[str, Any] | None) -> None:
        """Commit the changes, unless the owner of the session does."""
        if self.committed is not None:
            store.commit(message, metadata)

    def is_own(self, url: str) -> bool:
        """Say whether a file is a chunk of the repository itself, or is to become one."""
        folders = ([f"{self.root}/{CHUNKS}/"] if self.root else []) + (
            [f"{self.takes_in}/"] if self.takes_in else []
        )
        return any(url.startswith(folder) for folder in folders)
