"""What stores have in common that do not write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, NoReturn

from virtualds.errors import UnsupportedError
from virtualds.source_file import StorageOptions
from virtualds.stores.store import version_of


class ReadOnlyStore(ABC):
    """A store whose files have versions, and that refuses to write any.

    ``refusal`` says what it does not write into, and what to do.
    """

    refusal: ClassVar[str]

    @abstractmethod
    def read_all(self, url: str, options: StorageOptions | None) -> bytes:
        """Return all bytes of a file."""

    def read_version(self, url: str, options: StorageOptions | None) -> tuple[bytes, str]:
        """Return all bytes of a file, and a hash of them."""
        data = self.read_all(url, options)
        return data, version_of(data)

    def find_version(self, url: str, options: StorageOptions | None) -> str | None:
        """Return a hash of the bytes of a file, None if there is no such file."""
        try:
            return self.read_version(url, options)[1]
        except FileNotFoundError:
            return None

    def write_all(
        self, url: str, data: bytes, options: StorageOptions | None, *, replace: bool
    ) -> None:
        """Refuse."""
        self._refuse(url)

    def write_folder(
        self,
        url: str,
        files: Iterable[tuple[str, bytes]],
        options: StorageOptions | None,
        *,
        replace: bool,
        expected: str | None = None,
    ) -> None:
        """Refuse."""
        self._refuse(url)

    def demand_conditions(self, url: str, options: StorageOptions | None) -> None:
        """Refuse."""
        self._refuse(url)

    def write_version(
        self, url: str, data: bytes, options: StorageOptions | None, expected: str | None
    ) -> str:
        """Refuse."""
        self._refuse(url)

    def write_file(self, url: str, data: bytes, options: StorageOptions | None) -> None:
        """Refuse."""
        self._refuse(url)

    def remove(self, urls: Iterable[str], options: StorageOptions | None) -> None:
        """Refuse to remove any file."""
        for url in urls:
            self._refuse(url)

    def _refuse(self, url: str) -> NoReturn:
        raise UnsupportedError(f"{url}: virtualds does not write into {self.refusal}")
