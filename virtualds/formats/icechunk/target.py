"""Targets of writing: an Icechunk repository at a url, or a session that the user opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from virtualds.errors import ConflictError, cannot_hold
from virtualds.formats.icechunk.locations import ObjectLocation, find_storage
from virtualds.formats.icechunk.needs import NOTHING_NEEDED, Needs
from virtualds.formats.icechunk.references import CHUNKS, import_adapter
from virtualds.source_file import StorageOptions

MAIN = "main"


def is_occupied(
    url: Any,
    options: StorageOptions | None = None,
    *,
    branch: str = MAIN,
    create_branch: bool = False,
) -> bool:
    """Refuse a branch or session that holds nodes; return False if it is empty.

    Raises
    ------
    FileExistsError
        It holds nodes, which the error lists.
    """
    target = Target.of(url, options, branch, create_branch=create_branch)
    if target.place is not None and not target.exists():
        return False
    with target.whole_branch(keep=False):
        store = target.open_store()
        if import_adapter().read_documents(store, target.name):
            raise occupied_error(target, store)
    return False


def occupied_error(target: Target, store: Any) -> FileExistsError:
    """Return the error that lists the existing arrays, which a write would remove."""
    nodes = import_adapter().read_documents(store, target.name)
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
        Whether a branch that does not exist begins where ``main`` is.
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
        cls,
        url: Any,
        options: StorageOptions | None,
        branch: str,
        *,
        config: Any = None,
        create_branch: bool = False,
        takes_in: str | None = None,
    ) -> Target:
        """Return the target that a user names.

        Raises
        ------
        ValueError
            A session has another branch, or an object a configuration of its own.
        TypeError
            The configuration is none of Icechunk's.
        """
        import_adapter().check_config(config)
        if not isinstance(url, str):
            if branch != MAIN and not import_adapter().is_committed_here(url):
                raise ValueError(f"branch {branch!r}: a session has its own; leave it out")
            if config is not None:
                raise ValueError("config: an open repository has its own; leave it out")
            name = f"{type(url).__name__} of Icechunk"
            return cls(
                None, url, None, name, branch, create_branch=create_branch, takes_in=takes_in
            )
        root = url.rstrip("/")
        place = find_storage(root, options)
        return cls(place, None, root, root, branch, options, config, create_branch, takes_in)

    @contextmanager
    def whole_branch(self, *, keep: bool = True) -> Iterator[None]:
        """Remove a branch that began in the block, if the block fails or it is not to be kept."""
        done = False
        try:
            yield
            done = True
        finally:
            if self.begun and not (done and keep):
                _remove_branch(self.given, self.branch, self.name)
                self.begun = False

    def exists(self) -> bool:
        """Say whether there is a repository."""
        return self.place is None or bool(import_adapter().is_repository(self.place, self.name))

    def open_store(self, needed: Needs = NOTHING_NEEDED, before: Any = None) -> Any:
        """Return a store to write to, of a repository whose configuration has what is needed.

        Parameters
        ----------
        needed : Needs
        before : IcechunkStore, optional
            A store opened before: the new one must begin with the same snapshot.
        """
        if self.place is not None:
            if self.exists():
                repository = import_adapter().open_repository(self.place, self.name, self.config)
                repository = import_adapter().configure(repository, self.name, *needed)
            else:
                repository = import_adapter().create_repository(
                    self.place, self.name, *needed, self.config
                )
            self.given = repository
        else:
            self._check(needed.containers)
            if before is not None:
                return before
        if self.create_branch and import_adapter().is_committed_here(self.given):
            self.begun |= _begin_branch(self.given, self.branch, MAIN, self.name)
        store = import_adapter().open_writable_store(self.given, self.branch, self.name)
        if before is not None and store.session.snapshot_id != before.session.snapshot_id:
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
        if self.place is not None or import_adapter().is_committed_here(self.given):
            import_adapter().commit(store, message, metadata, self.name)

    def is_own(self, url: str) -> bool:
        """Say whether a file is a chunk of the repository itself, or is to become one."""
        folders = ([f"{self.root}/{CHUNKS}/"] if self.root else []) + (
            [f"{self.takes_in}/"] if self.takes_in else []
        )
        return any(url.startswith(folder) for folder in folders)


def _begin_branch(repository: Any, branch: str, before: str, url: str) -> bool:
    """Make a branch that begins where another one is; return False if there is one already."""
    with import_adapter().describe_errors(url):
        if branch in repository.list_branches():
            return False
        repository.create_branch(branch, repository.lookup_branch(before))
        return True


def _remove_branch(repository: Any, branch: str, url: str) -> None:
    """Remove a branch."""
    with import_adapter().describe_errors(url):
        repository.delete_branch(branch)
