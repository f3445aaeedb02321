"""Glob patterns, and listings of the files that match one: sizes, times and etags, as columns.

In a pattern, ``*``, ``?`` and ``[...]`` match characters within one part of a path, ``**`` any
number of folders. ``{a,b}`` matches one of several strings. ``{name}`` matches text within one part
and names it, such as a member, a version or a date. ``{{`` and ``}}`` match braces.

A folder that cannot be listed raises an error instead of counting as empty, since callers treat
files that are not listed as removed.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from stat import S_ISDIR
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt

from virtualds.errors import CombineError, without_secrets
from virtualds.progress import INFO, is_logged, log
from virtualds.source_file import (
    ARCHIVES,
    KINDS,
    NO_NUMBER,
    StorageOptions,
    host_of,
    kind_of,
    local_path,
    normalise_url,
    scheme_of,
)
from virtualds.stores.access_rules import BUCKET_SCHEMES
from virtualds.stores.fsspec import (
    describe_errors,
    fetch_info,
    find_filesystem,
    get_etag,
    get_modified_time,
    make_folder_error,
    use_filesystem,
)
from virtualds.stores.requests import Request, normalise_etag, retry_request
from virtualds.stores.store import explain_open_errors

# ---------------------------------------------------------------------- patterns

WEB_SCHEMES = ("http", "https")
"""Schemes whose urls may contain question marks and brackets."""

TOKEN = re.compile(
    r"(?P<brace>\{\{|\}\})"
    r"|\{(?P<name>[A-Za-z_]\w*)(?::(?P<form>[^{}/]*))?\}"
    r"|\{(?P<choices>[^{}/]*,[^{}/]*)\}"
)
"""Matches the expressions in braces of a pattern."""

SETS_AND_STARS = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\.\*")
"""Matches ``.*``, and escapes and character sets, in which a star is literal."""

DIGITS = {"Y": r"\d{4}", "j": r"\d{3}", "y": r"\d{2}"} | dict.fromkeys("mdHMS", r"\d{2}")
"""Regular expressions for the numeric codes of `datetime.datetime.strptime`."""

Facts = Mapping[str, str]
"""The text in a path that each name of a pattern matches."""


@dataclass(frozen=True)
class PathPattern:
    """A pattern of paths or urls, with named parts that can be parsed from matching paths.

    A name that occurs twice matches the same text both times. A form may follow a name:
    ``{lead:d}`` is a whole number, and ``{time:%Y%m%d}`` a date (codes of
    `datetime.datetime.strptime`); without a form it is text. With ``is_web``, question marks and
    brackets are part of the url.

    Examples
    --------
    >>> pattern = PathPattern("/data/{model}/{version}/{variable}_*_{years}.nc")
    >>> pattern.names
    ('model', 'version', 'variable', 'years')
    >>> pattern.match("/data/M1/v2/tas_Amon_M1_1850-1899.nc")
    {'model': 'M1', 'version': 'v2', 'variable': 'tas', 'years': '1850-1899'}
    """

    text: str
    is_web: bool = False

    @classmethod
    def from_url(cls, url: str) -> PathPattern:
        """Parse a url or a path as a pattern."""
        return cls(url, scheme_of(url) in WEB_SCHEMES)

    def __post_init__(self) -> None:
        for name, spec in self.specs.items():
            if spec not in ("", "d") and "%" not in spec:
                raise ValueError(
                    f"pattern {self.text!r}: {{{name}:{spec}}} has an unknown form; give "
                    f"{{{name}}} for text, {{{name}:d}} for a number, or {{{name}:%Y%m%d}} for a "
                    f"date"
                )

    @cached_property
    def specs(self) -> dict[str, str]:
        """The form of each name, in the order of the pattern."""
        forms = dict[str, str]()
        for token in TOKEN.finditer(self.text):
            if name := token["name"]:
                forms[name] = token["form"] or forms.get(name, "")
        return forms

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the pattern."""
        return tuple(self.specs)

    @cached_property
    def has_repeated_names(self) -> bool:
        """Whether a name occurs more than once."""
        names = [token["name"] for token in TOKEN.finditer(self.text) if token["name"]]
        return len(names) > len(self.specs)

    @property
    def parts(self) -> list[str]:
        """The parts between slashes."""
        return self.text.split("/")

    @property
    def is_literal(self) -> bool:
        """Whether the pattern matches only itself."""
        return self.count_literal_parts() == len(self.parts)

    def count_literal_parts(self) -> int:
        """Return the number of leading parts without wildcards, names and alternatives."""
        wildcards = "*" if self.is_web else "*?["
        for number, part in enumerate(self.parts):
            if TOKEN.search(part) is not None or any(character in part for character in wildcards):
                return number
        return len(self.parts)

    def compile_part(self, part: str) -> re.Pattern[str]:
        """Compile a part to a regular expression that matches names of files or folders."""
        return re.compile(f"(?s:{self._translate(part, set())})\\Z")

    def match(self, path: str) -> dict[str, str] | None:
        """Match a path or url; return the text of each name, or None if it does not match."""
        if (matched := self._regex.match(path)) is None:
            return None
        texts = matched.groupdict()
        # web servers list percent-encoded names
        return {name: unquote(text) for name, text in texts.items()} if self.is_web else texts

    def find_facts(self, path: str) -> dict[str, str]:
        """Match a path or url; return the text of each name.

        Raises `CombineError`, which names the part that does not match.
        """
        if (facts := self.match(path)) is not None:
            return facts
        texts = dict[str, str]()
        for part, text in zip(self.parts, path.split("/"), strict=False):
            if part == "**":
                break
            part_match = self.compile_part(part).match(text)
            if part_match is None:
                raise CombineError(f"{path}: {text!r} does not match {part!r} of the pattern")
            for name, value in part_match.groupdict().items():
                if texts.setdefault(name, value) != value:
                    raise CombineError(
                        f"{path}: {{{name}}} is {texts[name]!r} in one part and {value!r} in "
                        "another"
                    )
        raise CombineError(f"{path}: it does not match the pattern {self.text!r}")

    def split(self, path: str, name: str) -> tuple[tuple[str, ...], str] | None:
        """Split a path or url into the rest and the text that a name matches; None if no match.

        Paths with the same rest differ only in that text.

        >>> PathPattern("{version}/*.nc").split("v1/2001.nc", "version")
        (('', '', '/', '2001.nc'), 'v1')
        """
        if (match := self._regex.match(path)) is None:
            return None
        group = self._regex.groupindex[name]
        groups = (match[number] for number in range(1, self._regex.groups + 1) if number != group)
        return tuple(groups), unquote(match[name]) if self.is_web else match[name]

    def fill(self, facts: Facts) -> str:
        """Return the pattern with the names replaced by texts."""
        return TOKEN.sub(
            lambda token: facts[token["name"]] if token["name"] else token[0][0], self.text
        )

    def read(self, name: str, text: str) -> Any:
        """Parse the text of a name to a number or a date, by its form."""
        spec = self.specs[name]
        try:
            if spec == "d":
                return int(text)
            return datetime.strptime(text, spec) if spec else text
        except ValueError as error:
            raise CombineError(
                f"{{{name}:{spec}}} does not fit {text!r} ({error}); correct the pattern, or leave "
                f"the file out"
            ) from None

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        seen = set[str]()
        groups = []
        # ** at the end matches all files below
        for part in [*self.parts, "*"] if self.parts[-1] == "**" else self.parts:
            expression = "((?:[^/]+/)*)" if part == "**" else self._translate(part, seen) + "(/)"
            groups.append(expression)
        return re.compile(f"(?s:{''.join(groups).removesuffix('(/)')})\\Z")

    def _translate(self, part: str, seen: set[str]) -> str:
        """Return the regular expression of a part; a name in ``seen`` matches the same text again.

        Text outside names is in unnamed groups, for `split`.
        """
        groups, end = [], 0
        for token in TOKEN.finditer(part):
            groups.append(f"({self._translate_wildcards(part[end : token.start()])})")
            if name := token["name"]:
                spec = self.specs[name]
                groups.append(
                    f"(?P={name})" if name in seen else f"(?P<{name}>{_match_form(spec)})"
                )
                seen.add(name)
            elif token["brace"]:
                groups.append(re.escape(token["brace"][0]))
            else:
                choices = map(self._translate_wildcards, token["choices"].split(","))
                groups.append(f"({'|'.join(choices)})")
            end = token.end()
        return "".join([*groups, f"({self._translate_wildcards(part[end:])})"])

    def _translate_wildcards(self, text: str) -> str:
        if self.is_web:
            text = re.sub(r"([?\[])", r"[\1]", text)
        # remove (?s:...)\Z; in paths, * and ? do not match a slash
        inner = re.sub(r"^\(\?s:(.*)\)\\[zZ]$", r"\1", fnmatch.translate(text), flags=re.DOTALL)
        return SETS_AND_STARS.sub(lambda m: "[^/]*" if m[0] == ".*" else m[0], inner)


def _match_form(spec: str) -> str:
    """Return the regular expression of the form of a name."""
    if spec == "d":
        return r"-?\d+"
    if not spec:
        return "[^/]+?"
    codes = re.split(r"%(.)", spec)
    return "".join(
        DIGITS.get(piece, "[^/]+?") if index % 2 else re.escape(piece)
        for index, piece in enumerate(codes)
    )


def escape_pattern(url: str) -> str:
    """Escape the wildcards of a url, so that the pattern matches only this url.

    >>> escape_pattern("s3://bucket/a[1]{b}")
    's3://bucket/a[[]1]{{b}}'
    """
    wildcards = r"[{}]" if scheme_of(url) in WEB_SCHEMES else r"[*?\[{}]"
    return re.sub(wildcards, lambda m: m[0] * 2 if m[0] in "{}" else f"[{m[0]}]", url)


# ---------------------------------------------------------------------- files that match


def find_matching_files(
    patterns: Iterable[str], options: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the files that match `PathPattern` patterns, sorted by name for each pattern.

    A path without wildcards, or of an existing local file, is returned unchanged. A folder of an
    HTTP server is a page of links. Raises `FileNotFoundError` for a pattern without matches.
    """
    storage_options = StorageOptions.of(options)
    return [file for pattern in patterns for file in _match_pattern(pattern, storage_options)]


def is_pattern(name: str) -> bool:
    """Return whether a string is a pattern, not a single path or the name of a local file."""
    scheme = scheme_of(name)
    if scheme in ARCHIVES or PathPattern.from_url(name).is_literal:
        return False
    return scheme != "file" or not os.path.lexists(os.path.expanduser(local_path(name)))


def _match_pattern(text: str, options: StorageOptions | None) -> list[str]:
    if not is_pattern(text):
        return [text]
    start, matches = time.perf_counter(), list[str]()
    if scheme_of(text) == "file":
        pattern = PathPattern(os.path.expanduser(local_path(text)))
        with suppress(FileNotFoundError):
            # a pattern with two ** may match a file twice
            matches = sorted({path for path, _ in _walk_folders(pattern)})
    else:
        matches = _list_states(text, options).urls.tolist()
    if is_logged(INFO):
        log(INFO, f"{text}: {len(matches):,} files match, {time.perf_counter() - start:.3f} s")
    if not matches:
        raise FileNotFoundError(
            f"{without_secrets(text)}: no file matches this pattern; check the path"
        )
    return matches


def find_entries(pattern: str, options: StorageOptions | None) -> list[str]:
    """Return the files and folders that match a pattern; raise an error if there are none."""
    if scheme_of(pattern) == "file":
        return _match_pattern(pattern, options)
    matches = list[str]()
    with suppress(FileNotFoundError):
        matches = sorted({url for url, _ in _walk_remote_entries(pattern, options)})
    if not matches:
        raise FileNotFoundError(
            f"{without_secrets(pattern)}: no file or folder matches this pattern; check the path"
        )
    return matches


def make_similar_url(url: str, filesystem: Any, path: str) -> str:
    """Return the url of a path in a filesystem, with scheme and bucket of a similar url.

    fsspec returns a fixed scheme, and omits the account of ``abfs://container@account.../path``.
    """
    host = host_of(url)
    if "::" in url or scheme_of(url) not in BUCKET_SCHEMES or glob.has_magic(host):
        return str(filesystem.unstrip_protocol(path))
    return f"{host}/{path.partition('/')[2]}".rstrip("/")


# ---------------------------------------------------------------------- listings


T = TypeVar("T")


class FileState(NamedTuple):
    """The current state of a file.

    ``mtime``, in nanoseconds since 1970, is known for local files, and part of their fingerprint.
    ``modified``, in seconds since 1970, is the modification time of any file, or NaN if unknown.
    """

    url: str
    size: int = NO_NUMBER
    mtime: int = NO_NUMBER
    etag: str = ""
    modified: float = np.nan


@dataclass(frozen=True, eq=False)
class FileColumns:
    """The states of files as columns of equal length, one per field of `FileState`."""

    urls: npt.NDArray[np.object_]
    sizes: npt.NDArray[np.int64]
    mtimes: npt.NDArray[np.int64]
    etags: npt.NDArray[np.object_]
    modified: npt.NDArray[np.float64]

    @classmethod
    def from_states(cls, states: Iterable[FileState]) -> FileColumns:
        """Create the columns from states."""
        columns = tuple(zip(*states, strict=True)) or ((),) * len(FileState._fields)
        dtypes = (object, np.int64, np.int64, object, np.float64)
        return cls(
            *(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))
        )

    @classmethod
    def join(cls, parts: Sequence[FileColumns]) -> FileColumns:
        """Concatenate the columns of several parts."""
        parts, names = parts or [cls.from_states(())], cls.__dataclass_fields__
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[FileState]:
        """Yield the states of the files."""
        columns = (getattr(self, name).tolist() for name in self.__dataclass_fields__)
        return map(FileState._make, zip(*columns, strict=True))

    def take(self, selection: npt.NDArray[Any]) -> FileColumns:
        """Select files by index, or by a mask."""
        return FileColumns(*(getattr(self, name)[selection] for name in self.__dataclass_fields__))


def list_states(pattern: str, options: StorageOptions | None) -> FileColumns:
    """Return the states of the files that match a pattern, sorted by url; raise if none match."""
    states = _list_states(pattern, options)
    if not len(states):
        raise FileNotFoundError(
            f"{without_secrets(pattern)}: no file matches this pattern; check the path, and "
            f"whether its disk is mounted (folders, such as Zarr stores, do not count)"
        )
    return states


def _list_states(pattern: str, options: StorageOptions | None) -> FileColumns:
    """Return the states of the files that match a pattern, sorted by url, possibly none."""
    walk = _walk_local if scheme_of(pattern) == "file" else _walk_remote
    try:
        states = FileColumns.from_states(walk(pattern, options))
    except FileNotFoundError:
        states = FileColumns.from_states(())
    states = states.take(np.argsort(states.urls, kind="stable"))
    # a pattern with two ** may match a file twice
    return states.take(np.append(True, states.urls[1:] != states.urls[:-1])[: len(states)])


def fetch_state(url: str, options: StorageOptions | None) -> FileState:
    """Return the current state of a file, for a remote file in one request."""
    if scheme_of(url) == "file":
        if (state := _fetch_local_state(url, partial(os.stat, local_path(url)))) is None:
            raise make_folder_error(url)
        return state
    return _make_remote_state(url, fetch_info(url, options))


def list_folder_names(url: str, options: StorageOptions | None) -> set[str] | None:
    """Return the names in a folder of an object store, or None if it cannot be listed quickly.

    Errors are ignored, since the user may be allowed to read objects but not to list them.
    """
    if kind_of(url) not in KINDS or "::" in url:
        return None

    def list_names(filesystem: Any, path: str) -> set[str] | None:
        can_list = hasattr(filesystem, "list_names")
        return filesystem.list_names(path) if can_list else None

    with suppress(OSError), describe_errors(url, "LIST"):
        return use_filesystem(url, options, list_names)
    return None


# ---------------------------------------------------------------------- local


def _walk_local(text: str, options: StorageOptions | None) -> Iterator[FileState]:
    for url, entry in _walk_folders(PathPattern(normalise_url(text))):
        # the file may have been removed, or be a broken link
        with suppress(FileNotFoundError):
            if (state := _fetch_local_state(url, entry.stat)) is not None:
                yield state


def _walk_folders(pattern: PathPattern) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield the paths and entries of local files and folders that match a pattern."""

    def scan(folder: str) -> Iterator[tuple[str, Any, Callable[[], bool]]]:
        with os.scandir(local_path(folder) or os.sep) as entries:
            for entry in entries:
                yield entry.name, entry, partial(_is_folder, entry)

    def match(part: str) -> Callable[[str], Any]:
        matches = pattern.compile_part(part).match
        # as in a shell, a wildcard does not match hidden files
        skips_hidden = not part.startswith(".")
        return lambda name: not (skips_hidden and name.startswith(".")) and matches(name)

    yield from _walk(pattern, scan, match, ".")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def _fetch_local_state(url: str, describe: Callable[[], os.stat_result]) -> FileState | None:
    """Return the state of a local file, or None for a folder."""
    try:
        status = describe()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        # opening a loop of symbolic links raises a better error
        return FileState(url, 0, modified=0.0)
    if S_ISDIR(status.st_mode):
        return None
    return FileState(url, status.st_size, status.st_mtime_ns, "", status.st_mtime)


# ---------------------------------------------------------------------- remote


def _walk_remote(pattern: str, options: StorageOptions | None) -> Iterator[FileState]:
    for url, info in _walk_remote_entries(pattern, options):
        if info.get("type") != "directory":
            yield _make_remote_state(url, info)


def _walk_remote_entries(
    pattern: str, options: StorageOptions | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    with explain_open_errors(pattern), describe_errors(pattern):
        filesystem, path = find_filesystem(pattern, options)
    filesystem.invalidate_cache()
    parsed = PathPattern(path, scheme_of(pattern) in WEB_SCHEMES)
    root = "/".join(parsed.parts[: parsed.count_literal_parts()])
    list_folder = partial(_iterate_folder, filesystem, pattern, options, root)
    base = make_similar_url(pattern, filesystem, root).rstrip("/")
    for name, info in _walk(parsed, list_folder, lambda part: parsed.compile_part(part).match):
        yield f"{base}{name[len(root) :]}", info


def _iterate_folder(
    filesystem: Any, pattern: str, options: StorageOptions | None, root: str, folder: str
) -> Iterator[tuple[str, Any, Callable[[], bool]]]:
    url = make_similar_url(pattern, filesystem, folder)
    pattern_or_url = pattern if folder == root else url

    def list_folder(filesystem: Any, _: str) -> Any:
        return filesystem.ls(folder, detail=True)

    with explain_open_errors(pattern_or_url), describe_errors(pattern_or_url):
        infos = retry_request(
            partial(use_filesystem, url, options, list_folder, retries=True), Request("LIST", url)
        )
    prefix = f"{folder.rstrip('/')}/"
    for info in infos:
        name = info["name"].removeprefix(prefix).rstrip("/")
        # skip the folder itself, and links of a web page to other pages or to other sort orders
        if name and "/" not in name and not name.startswith("?"):
            is_folder = info.get("type") == "directory"
            yield name, info, partial(bool, is_folder)


def _make_remote_state(url: str, info: dict[str, Any]) -> FileState:
    size, modified = info.get("size"), get_modified_time(info)
    return FileState(
        url,
        NO_NUMBER if size is None else size,
        NO_NUMBER,
        normalise_etag(get_etag(info)),
        np.nan if modified is None else modified,
    )


# ---------------------------------------------------------------------- folders

ListFolder = Callable[[str], Iterable[tuple[str, Any, Callable[[], bool]]]]
"""A function that takes a folder, and yields names, entries, and `is_folder` functions."""


def _walk(
    pattern: PathPattern,
    list_folder: ListFolder,
    match: Callable[[str], Callable[[str], Any]],
    top: str = "",
) -> Iterator[tuple[str, Any]]:
    """Yield the paths and entries that match a pattern, folder by folder.

    ``top`` is the folder of a pattern without a folder.
    """
    # the last part is looked up in the listing of its folder, even without wildcards
    first = min(pattern.count_literal_parts(), len(pattern.parts) - 1)
    folder = "/".join(pattern.parts[:first]) if first else top
    for path, entry in _walk_parts(folder, pattern.parts[first:], list_folder, match):
        match_path = path if first else path.removeprefix(f"{top}/")
        # a name that occurs twice in the pattern must match the same text
        if not pattern.has_repeated_names or pattern.match(match_path) is not None:
            yield match_path, entry


def _walk_parts(
    folder: str,
    parts: Sequence[str],
    list_folder: ListFolder,
    match: Callable[[str], Callable[[str], Any]],
    is_nested: bool = False,
) -> Iterator[tuple[str, Any]]:
    head, other_parts = parts[0], parts[1:]
    if head == "**":
        # ** also matches zero folders
        yield from _walk_parts(folder, other_parts or ["*"], list_folder, match, is_nested)
    matches = match("*" if head == "**" else head)
    try:
        for name, entry, is_folder in list_folder(folder):
            if not matches(name):
                continue
            path = f"{folder}/{name}"
            if head == "**":
                if is_folder() and not getattr(entry, "is_symlink", bool)():
                    yield from _walk_parts(path, parts, list_folder, match, True)
            elif not other_parts:
                yield path, entry
            elif is_folder():
                yield from _walk_parts(path, other_parts, list_folder, match, True)
    except (FileNotFoundError, NotADirectoryError):
        # a matching folder need not contain the next part of the pattern
        if not is_nested:
            raise
