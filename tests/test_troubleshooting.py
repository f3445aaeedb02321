"""Every heading of the troubleshooting page stands in a message that a user meets."""

import os
import re
import shutil
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from range_server import Fault, Served, faulty_server

import virtualds

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "troubleshooting.md"
HEADINGS = re.findall(r"^### (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NESTED: Any = {"combine": "nested", "concat_dim": "time"}
SECRET = "token=abc"


@dataclass(frozen=True)
class Place:
    """A folder with ``2001.nc`` and ``2002.nc``, and a server of it."""

    folder: Path
    served: Served

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path

    def pack(self, how: int) -> Path:
        path = self.folder / "a.zip"
        with zipfile.ZipFile(path, "w", how) as archive:
            for file in self.folder.glob("*.nc"):
                archive.write(file, file.name)
        return path

    def native(self, name: str = "2001.nc") -> xr.Dataset:
        return xr.load_dataset(self.folder / name)

    def put(self, name: str, dataset: xr.Dataset) -> Path:
        dataset.drop_encoding().to_netcdf(self.folder / name)
        return self.folder / name

    def fail(self, fault: Fault) -> None:
        self.served.always = fault
        open_one(f"{self.served.url}/2001.nc")

    def ask_s3(self, fault: Fault) -> None:
        self.served.always = fault
        server = {"endpoint_url": self.served.url, "region_name": "us-east-1"}
        open_one(
            "s3://bucket/2001.nc",
            storage_options={"key": "a", "secret": "b", "client_kwargs": server},
        )

    def many(self) -> xr.Dataset:
        return open_many(sorted(self.folder.glob("200?.nc")))

    def set(self, name: str = "refs.zarr") -> Path:
        open_one(self.folder / "2001.nc").virtual.to_manifest(self.folder / name)
        return self.folder / name

    def append(self, new: xr.Dataset) -> None:
        new.virtual.to_manifest(self.set(), append_dim="time")

    def read(self, refs: Any, **how: Any) -> None:
        np.asarray(xr.open_dataset(refs, engine="virtual", **how).t)


open_one = virtualds.open_virtual_dataset


def open_many(files: Any, **how: Any) -> xr.Dataset:
    return virtualds.open_virtual_mfdataset(files, **{**NESTED, **how})


@pytest.fixture
def place(
    archive_files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    for path in archive_files:
        shutil.copy2(path, tmp_path)
    monkeypatch.chdir(tmp_path)
    with faulty_server(tmp_path) as served, virtualds.set_options(retries=0):
        yield Place(tmp_path, served)


def open_a_folder(at: Place) -> None:
    (at.folder / "folder").mkdir()
    open_one(at.folder / "folder")


def connect_to_nobody(at: Place) -> None:
    with faulty_server(at.folder) as gone:
        url = gone.url
    open_one(f"{url}/2001.nc")


def s3_fault(status: int, code: str) -> Fault:
    return Fault("status", status, body=f"<Error><Code>{code}</Code></Error>".encode())


EXPIRED_TOKEN = s3_fault(400, "ExpiredToken")
OTHER_REGION = s3_fault(400, "AuthorizationHeaderMalformed")


def redirect_to_a_login(at: Place) -> None:
    with faulty_server(at.folder) as login:
        login.always = Fault("status", 401)
        at.fail(Fault("status", 302, {"Location": f"{login.url}/login"}))


def join_swaths(at: Place) -> None:
    longer = at.native().drop_vars("lat")
    shorter = longer.isel(lat=slice(3)).assign_coords(time=longer.time + np.timedelta64(900, "D"))
    open_many([at.put("a.nc", longer), at.put("b.nc", shorter)], **NESTED)


def overlap(at: Place) -> None:
    first = at.native()
    other = first.assign(t=first.t + 1)
    open_many([at.put("a.nc", first), at.put("b.nc", other)])


def leave_out(at: Place) -> None:
    at.write("2003.nc", b"")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_many("*.nc", on_error="skip")


def hold_in_kerchunk(at: Place) -> None:
    at.put("2002.nc", at.native("2002.nc"))
    at.many().virtual.to_manifest("refs.json")


def sync_without_a_file(at: Place) -> None:
    virtualds.sync("*.nc", "refs.zarr", concat_dim="time", settle=0)
    (at.folder / "2001.nc").unlink()
    virtualds.sync("*.nc", "refs.zarr", concat_dim="time", settle=0)


def read_after(change: Callable[[Path], object]) -> Callable[[Place], None]:
    def read(at: Place) -> None:
        refs = at.set()
        change(at.folder / "2001.nc")
        at.read(refs)

    return read


def read_from_a_server(at: Place) -> None:
    at.set("refs.json")
    at.read(f"{at.served.url}/refs.json")


def combine_two_grids(at: Place) -> None:
    at.put("2002.nc", at.native("2002.nc").rename(lat="latitude"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", virtualds.CombineWarning)
        at.many()


def open_with(engine: Any) -> Callable[[Place], None]:
    return lambda at: xr.open_dataset(str(at.set()), engine=engine).load()


def load_too_much(_: Place) -> None:
    with virtualds.set_options(load_limit=10):
        np.asarray(open_one("2001.nc").t)


def assign(_: Place) -> None:
    open_one("2001.nc").t[0] = 1


PROVOKED: dict[str, Callable[[Place], object]] = {
    "there is no such file": lambda _: open_one("2000.nc"),
    "no file matches this pattern": lambda _: open_many("data/*.nc"),
    "begins with ..., which no known format does": lambda at: open_one(at.write("a", b"a text")),
    "the file is an HTML page": lambda at: open_one(at.write("a.nc", b"<!DOCTYPE html><html>")),
    "the file is empty": lambda at: open_one(at.write("a.nc", b"")),
    "HDF5 cannot read it": lambda at: open_one(
        at.write("a.nc", (at.folder / "2001.nc").read_bytes()[:3000])
    ),
    "this folder is neither a reference set nor a Zarr store": open_a_folder,
    "the file is JSON, but not a reference set": lambda at: open_one(at.write("a.json", b"{}")),
    "the archive holds ... files": lambda at: open_one(at.pack(zipfile.ZIP_STORED)),
    "it is compressed as a whole": lambda at: open_one(
        f"zip://2001.nc::{at.pack(zipfile.ZIP_DEFLATED)}"
    ),
    "there is no group": lambda _: open_one("2001.nc", group="nope"),
    "has no argument": lambda _: open_many("*.nc", concatdim="time"),
    "the server refuses access": lambda at: at.fail(Fault("status", status=403)),
    "the credentials have expired": lambda at: at.ask_s3(EXPIRED_TOKEN),
    "after a redirect": redirect_to_a_login,
    "the bucket is in another region": lambda at: at.ask_s3(OTHER_REGION),
    "no server answers": connect_to_nobody,
    "the name of the host is not known": lambda _: open_one("http://nowhere.invalid/2001.nc"),
    "Protocol not known": lambda _: open_one("htp://example.org/2001.nc"),
    "it refers to ..., which": read_from_a_server,
    "has a password, or a signature or token in its query": lambda at: open_one(
        f"{at.served.url}/2001.nc?{SECRET}"
    ).virtual.to_manifest("refs.zarr"),
    "no file has this dimension": lambda _: open_many("*.nc", concat_dim="tme"),
    "conflicting values for variable": lambda _: open_many("*.nc", concat_dim=None),
    "cannot align objects with join='exact'": lambda at: open_many(
        ["2001.nc", at.put("cut.nc", at.native("2002.nc").isel(lat=slice(1, 5)))], join="exact"
    ),
    "conflicting dimension sizes": join_swaths,
    "the ... files combine, but are not alike": combine_two_grids,
    "overlap along": overlap,
    "files could not be opened, and are left out": leave_out,
    "cannot hold ... of this dataset": hold_in_kerchunk,
    "exists already": lambda at: (at.set(), at.set()),
    "its name has no suffix of a format": lambda at: at.set("refs"),
    "the new dataset does not fit the set": lambda at: at.append(
        open_one("2002.nc").isel(lat=slice(0, 3))
    ),
    "positions are in the set already": lambda at: at.append(open_one("2001.nc")),
    "references cannot express its values": lambda _: (
        xr.open_dataset("2001.nc", engine="virtual", chunks={}) + 1
    ).virtual.to_manifest("refs.zarr"),
    "not listed any more": sync_without_a_file,
    "Chunk key encoding 'virtualds.manifest' not found": open_with("zarr"),
    "No such file or directory: '.../.zmetadata'": open_with("kerchunk"),
    "No such file or directory": read_after(os.unlink),
    "the file was modified after it was scanned": read_after(lambda path: os.utime(path, (1, 1))),
    "it had ... when scanned": read_after(lambda path: path.write_bytes(b"another")),
    "this would load": load_too_much,
    "no item assignment": assign,
}


def test_every_heading_is_provoked() -> None:
    assert list(PROVOKED) == HEADINGS
    assert len(HEADINGS) >= 25


@pytest.mark.parametrize("heading", PROVOKED)
def test_a_message_has_the_words_of_its_heading(heading: str, place: Place) -> None:
    words = ".*".join(map(re.escape, heading.split("...")))
    with pytest.raises(Exception, match=words) as caught:
        PROVOKED[heading](place)
    told, *rest = str(caught.value).split("\n")
    assert re.search(words, told), "the first line says what happened"
    assert SECRET not in told
    assert len(rest) <= 20
