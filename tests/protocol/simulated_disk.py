"""A disk of a simulation: the calls of the operating system, each a request of an explorer.

The store of local files runs as it ships, over a module that stands for ``os``. What only its owner
can see, as what a temporary file holds, is no choice of the explorer. What a file holds never
changes under its final name, so opening it and reading it are one step.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from protocol.explorer import Failed, Request, World, ask, count_up, name_actor, remember

from virtualds.stores import local

FOLDER = "/simulated"
"""The folder that there is."""

# ---------------------------------------------------------------------- the world


class Inode(NamedTuple):
    """A file: its number, and what it holds; a folder holds None."""

    number: str
    data: bytes | None


class Disk(NamedTuple):
    """What has which name, in the order of names, which files are locked by whom, and the time."""

    entries: tuple[tuple[str, Inode], ...] = ((FOLDER, Inode("root", None)),)
    locks: tuple[tuple[str, str], ...] = ()
    clock: int = 0


Answer = tuple[Any, Disk] | None


class DiskWorld(World):
    """The operating system: each call is one step."""

    lost = Failed(OSError, "the disk is full", errno.ENOSPC)
    free = frozenset({"fill", "create beside", "clock"})
    changing = frozenset({"create", "link", "rename", "unlink", "make folder", "remove folder"})
    changing |= {"exchange", "remove tree", "open lock"}

    def changes(self, request: Request) -> bool:
        return request.verb in self.changing

    def is_sent(self, request: Request) -> bool:
        return request.verb in self.changing

    def tick(self, state: Disk) -> Disk:
        return state._replace(clock=state.clock + 1)

    def after_crash(self, state: Disk, actor: str) -> Disk:
        # the system ends the locks of a process that is killed
        return state._replace(locks=tuple(pair for pair in state.locks if pair[1] != actor))

    def answer(self, state: Disk, actor: str, request: Request) -> Answer:
        verb, name, detail = request
        if verb == "clock":
            return state.clock, state
        if verb == "sleep":
            found = dict(state.entries).get(name)
            now = (state.clock, None if found is None else found.number)
            return None if detail == now else (None, state)
        if verb in ("lock", "unlock"):
            return self._lock(state, actor, verb, name)
        found = getattr(self, "_" + verb.replace(" ", "_"))(dict(state.entries), name, detail)
        if isinstance(found, dict):
            return None, state._replace(entries=tuple(sorted(found.items())))
        if isinstance(found, tuple) and isinstance(found[-1], dict):
            return found[0], state._replace(entries=tuple(sorted(found[-1].items())))
        return found, state

    def _lock(self, state: Disk, actor: str, verb: str, number: str) -> Answer:
        locks = dict(state.locks)
        if verb == "unlock":
            locks.pop(number, None)
        elif locks.get(number, actor) != actor:
            return None
        else:
            locks[number] = actor
        return None, state._replace(locks=tuple(sorted(locks.items())))

    # each takes the entries by name, a name, and details; it returns an answer, or the entries

    def _stat(self, entries: Any, name: str, detail: Any) -> Any:
        return entries.get(name) or _fail(errno.ENOENT, name)

    def _create(self, entries: Any, name: str, number: Any) -> Any:
        if error := _find_missing_folder(entries, name):
            return error
        if name in entries:
            return _fail(errno.EEXIST, name)
        return entries | {name: Inode(number, b"")}

    def _create_beside(self, entries: Any, name: str, detail: Any) -> Any:
        return entries | {name: Inode(*detail)}

    def _fill(self, entries: Any, name: str, data: Any) -> Any:
        # another may have removed it, with its folder
        known = entries.get(name)
        return entries if known is None else entries | {name: known._replace(data=data)}

    def _open_lock(self, entries: Any, name: str, number: Any) -> Any:
        if error := _find_missing_folder(entries, name):
            return error
        if name in entries:
            return entries[name]
        made = Inode(number, b"")
        return made, entries | {name: made}

    def _link(self, entries: Any, name: str, new: Any) -> Any:
        if name not in entries:
            return _fail(errno.ENOENT, name)
        if new in entries:
            return _fail(errno.EEXIST, new)
        return _find_missing_folder(entries, new) or entries | {new: entries[name]}

    def _rename(self, entries: Any, name: str, new: Any) -> Any:
        if name not in entries:
            return _fail(errno.ENOENT, name)
        if error := _find_missing_folder(entries, new):
            return error
        if entries[name].data is not None and new in entries and entries[new].data is None:
            return _fail(errno.EISDIR, new)
        if entries[name].data is None and new in entries:
            kind = errno.ENOTDIR if entries[new].data is not None else errno.ENOTEMPTY
            if kind == errno.ENOTDIR or _list_below(entries, new):
                return _fail(kind, new)
        return _move(entries, {name: new})

    def _exchange(self, entries: Any, name: str, other: Any) -> Any:
        if name not in entries or other not in entries:
            return _fail(errno.ENOENT, name)
        return _move(entries, {name: other, other: name})

    def _unlink(self, entries: Any, name: str, detail: Any) -> Any:
        if name not in entries:
            return _fail(errno.ENOENT, name)
        return {known: inode for known, inode in entries.items() if known != name}

    def _make_folder(self, entries: Any, name: str, detail: Any) -> Any:
        if name in entries:
            return _fail(errno.EEXIST, name)
        return _find_missing_folder(entries, name) or entries | {name: Inode("folder", None)}

    def _remove_folder(self, entries: Any, name: str, detail: Any) -> Any:
        if name not in entries:
            return _fail(errno.ENOENT, name)
        if _list_below(entries, name):
            return _fail(errno.ENOTEMPTY, name)
        return {known: inode for known, inode in entries.items() if known != name}

    def _remove_tree(self, entries: Any, name: str, detail: Any) -> Any:
        below = {name, *_list_below(entries, name)}
        return {known: inode for known, inode in entries.items() if known not in below}

    def _list(self, entries: Any, name: str, detail: Any) -> Any:
        if name not in entries:
            return _fail(errno.ENOENT, name)
        here = [known for known in entries if posixpath.dirname(known) == name]
        folders = tuple(posixpath.basename(n) for n in here if entries[n].data is None)
        return folders, tuple(posixpath.basename(n) for n in here if entries[n].data is not None)


def _fail(number: int, name: str) -> Failed:
    return Failed(type(OSError(number, "")), name, number)


def _find_missing_folder(entries: Any, name: str) -> Failed | None:
    above = entries.get(posixpath.dirname(name))
    if above is None:
        return _fail(errno.ENOENT, name)
    return None if above.data is None else _fail(errno.ENOTDIR, name)


def _list_below(entries: Any, name: str) -> list[str]:
    return [known for known in entries if known.startswith(f"{name}/")]


def _move(entries: Any, names: dict[str, str]) -> Any:
    """Return the entries with other names, of folders also those of all below."""
    found = {}
    for known, inode in entries.items():
        if known in names.values() and known not in names:
            continue
        first = next((n for n in names if known == n or known.startswith(f"{n}/")), None)
        found[known if first is None else names[first] + known.removeprefix(first)] = inode
    return found


# ---------------------------------------------------------------------- what stands for modules


class Handle:
    """An open file."""

    def __init__(self, path: str, inode: Inode, mode: str) -> None:
        self.path, self.inode, self.mode = path, inode, mode
        self.parts: list[bytes] = []

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *error: object) -> None:
        if self.mode == "w":
            ask("fill", self.path, b"".join(self.parts))

    def read(self, length: int = -1) -> bytes:
        assert self.inode.data is not None
        return self.inode.data if length < 0 else self.inode.data[:length]

    def write(self, data: bytes) -> None:
        self.parts.append(bytes(data))

    def flush(self) -> None:
        pass

    def fileno(self) -> Handle:
        return self


class _Path:
    """What stands for ``os.path``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(posixpath, name)

    def realpath(self, path: str) -> str:
        return posixpath.abspath(path)

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def isdir(self, path: str) -> bool:
        found = self._find(path)
        return found is not None and found.data is None

    def _find(self, path: str) -> Any:
        try:
            return ask("stat", path)
        except FileNotFoundError:
            return None


class _System:
    """What stands for ``os``."""

    path = _Path()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: str, flags: int, mode: int = 0) -> Handle:
        number = f"{name_actor()}{count_up('file')}"
        if flags & os.O_EXCL:
            ask("create", path, number)
            return Handle(path, Inode(number, b""), "w")
        if flags & os.O_CREAT:
            return Handle(path, ask("open lock", path, number), "lock")
        remember(path, None)
        inode = ask("stat", path)
        remember(path, inode.number)
        return Handle(path, inode, "r")

    def fdopen(self, handle: Handle, mode: str) -> Handle:
        return handle

    def close(self, handle: Handle) -> None:
        if handle.mode == "lock":
            ask("unlock", handle.inode.number)

    def fsync(self, handle: Handle) -> None:
        pass

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        return handle.read()[offset : offset + length]

    def fstat(self, handle: Handle) -> Any:
        return _describe(handle.inode)

    def stat(self, path: str, *, follow_symlinks: bool = True) -> Any:
        return _describe(ask("stat", path))

    lstat = stat

    def link(self, path: str, new: str) -> None:
        ask("link", path, new)

    def replace(self, path: str, new: str) -> None:
        ask("rename", path, new)

    rename = replace

    def unlink(self, path: str) -> None:
        ask("unlink", path)

    def mkdir(self, path: str) -> None:
        ask("make folder", path)

    def rmdir(self, path: str) -> None:
        ask("remove folder", path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        # as that of Python
        above = posixpath.dirname(path)
        if above and not self.path.exists(above):
            with suppress(FileExistsError):
                self.makedirs(above, exist_ok=exist_ok)
        try:
            self.mkdir(path)
        except OSError:
            if not exist_ok or not self.path.isdir(path):
                raise

    def walk(self, root: str, onerror: Callable[[OSError], None]) -> Iterator[Any]:
        try:
            folders, files = ask("list", root)
        except OSError as error:
            onerror(error)
            return
        yield root, list(folders), list(files)
        for folder in folders:
            yield from self.walk(f"{root}/{folder}", onerror)

    def listdir(self, path: str) -> Any:
        # no file is old
        raise OSError(errno.EACCES, "not looked at", path)


def _describe(inode: Inode) -> Any:
    kind = stat.S_IFDIR if inode.data is None else stat.S_IFREG
    size = len(inode.data or b"")
    times = {"st_mtime": 0.0, "st_mtime_ns": 0}
    return SimpleNamespace(st_ino=inode.number, st_dev=0, st_mode=kind, st_size=size, **times)


def _open(path: str, mode: str) -> Handle:
    """Create a file in a folder that nobody else knows."""
    inode = Inode(f"{name_actor()}{count_up('file')}", b"")
    ask("create beside", path, inode)
    return Handle(path, inode, "w")


def _flock(handle: Handle, how: int) -> None:
    ask("lock" if how == local.fcntl.LOCK_EX else "unlock", handle.inode.number)


@contextmanager
def simulated_disk() -> Iterator[None]:
    """Put the calls of the store of local files under the control of an explorer."""
    system = _System()
    locks = SimpleNamespace(flock=_flock, LOCK_EX=1, LOCK_UN=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "os", system)
        patch.setattr(local, "fcntl", locks)
        patch.setattr(local, "open", _open, raising=False)
        patch.setattr(local, "exchange_paths", lambda one, other: ask("exchange", one, other))
        removal = SimpleNamespace(rmtree=lambda path, ignore_errors: ask("remove tree", path))
        patch.setattr(local, "shutil", removal)
        yield
