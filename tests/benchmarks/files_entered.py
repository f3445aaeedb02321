"""Through how many files of the package one call passes, how deep imports go, and how long code is.

Numbers of this package, and of VirtualiZarr where it is installed. Nothing here knows the names of
modules, so that numbers from before and after a change of the layout can be compared.
"""

from __future__ import annotations

import ast
import io
import sys
import tempfile
import threading
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import xarray as xr

FILES, SHAPE = 4, (2, 30, 40)
"""Files, and elements of each along time, latitude and longitude."""
JOINED = {"combine": "nested", "concat_dim": "time"}
Calls = dict[str, Callable[[], object]]


# ---------------------------------------------------------------------- files entered


@dataclass
class Passage:
    """The own files that calls enter, and how many calls of an own file are of another own file.

    Parameters
    ----------
    folder : str
        Where the package lies.
    """

    folder: str
    files: set[str] = field(default_factory=set)
    changes: int = 0

    def note(self, frame: FrameType, event: str, arg: Any) -> None:
        """Take notice of a call, as `sys.setprofile` tells of them."""
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(self.folder):
            return
        self.files.add(name)
        # others may stand between two own files, as xarray does
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(self.folder):
            caller = caller.f_back
        self.changes += caller is not None and caller.f_code.co_filename != name


def passage_of(folder: Path, call: Callable[[], object]) -> Passage:
    """Return what a call passes that has been made before, so that all is imported and known.

    Threads that the call starts are counted, too; not those that wait in a pool already.
    """
    call()
    found = Passage(f"{folder}/")
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return found


def write_files(folder: Path) -> list[str]:
    """Write netCDF files of one compressed variable of three dimensions, and its coordinates."""
    values = np.random.default_rng(3).normal(280, 20, SHAPE).astype("f4")
    paths = []
    for number in range(FILES):
        steps = np.arange(SHAPE[0]) + number * SHAPE[0]
        dataset = xr.Dataset(
            {"t": (("time", "lat", "lon"), values + number, {"units": "K"})},
            coords={
                "time": ("time", steps, {"units": "days since 2000-01-01"}),
                "lat": np.linspace(-90, 90, SHAPE[1]),
                "lon": np.arange(SHAPE[2]) * 9.0,
            },
        )
        stored = {"chunksizes": (1, *SHAPE[1:]), "zlib": True, "shuffle": True}
        paths.append(str(folder / f"{number}.nc"))
        dataset.to_netcdf(paths[-1], engine="h5netcdf", encoding={"t": stored})
    return paths


def _virtualds_calls(paths: list[str]) -> Calls:
    import virtualds

    # what is read a second time is to be decoded again
    virtualds.set_options(chunk_cache=0)
    joined = virtualds.open_virtual_mfdataset(paths, **JOINED)
    selection = joined["t"].isel(time=slice(1, 6), lat=3)
    return {
        "open_virtual_dataset": lambda: virtualds.open_virtual_dataset(paths[0]),
        "xr.open_dataset": lambda: xr.open_dataset(paths[0], engine="virtual"),
        f"open_virtual_mfdataset, {FILES} files": lambda: virtualds.open_virtual_mfdataset(
            paths, **JOINED
        ),
        "a selection of them": selection.to_numpy,
    }


def _virtualizarr_calls(paths: list[str]) -> Calls:
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset, open_virtual_mfdataset
    from virtualizarr.parsers import HDFParser

    urls = [f"file://{path}" for path in paths]
    how = {"registry": ObjectStoreRegistry({"file://": LocalStore()}), "parser": HDFParser()}
    many = JOINED | {"data_vars": "minimal", "coords": "minimal", "compat": "override"}
    return {
        "open_virtual_dataset": lambda: open_virtual_dataset(urls[0], **how),
        f"open_virtual_mfdataset, {FILES} files": lambda: open_virtual_mfdataset(
            urls, **how, **many
        ),
    }


CALLS: dict[str, Callable[[list[str]], Calls]] = {
    "virtualds": _virtualds_calls,
    "virtualizarr": _virtualizarr_calls,
}


# ---------------------------------------------------------------------- imports


def modules_of(package: str, folder: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names, without tests."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        parts = inner[:-1] if inner[-1] == "__init__" else inner
        if "tests" not in parts:
            found[".".join((package, *parts))] = path
    return found


def imports_of(module: str, path: Path, modules: dict[str, Path]) -> set[str]:
    """Return the own modules that a module imports when it runs, at once or within functions."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in _run(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else base for name in names}
    return found & modules.keys() - {module}


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree but those that only type checkers look at."""
    yield node
    is_typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    below = node.orelse if is_typing else ast.iter_child_nodes(node)  # type: ignore[attr-defined]
    for child in below:
        yield from _run(child)


def longest_chain(graph: dict[str, set[str]]) -> tuple[list[str], int]:
    """Return the longest chain of imports, and how many imports were left out to end circles."""
    left_out = 0
    while True:
        try:
            order = [*TopologicalSorter(graph).static_order()]
            break
        except CycleError as error:
            # each module of the circle is imported by the next one
            imported, importer = error.args[1][:2]
            graph = graph | {importer: graph[importer] - {imported}}
            left_out += 1
    chains: dict[str, list[str]] = {}
    for module in order:
        chains[module] = [module, *max((chains[m] for m in graph[module]), key=len, default=[])]
    return max(chains.values(), key=len), left_out


# ---------------------------------------------------------------------- lines


def code_lines(path: Path) -> int:
    """Return how many lines hold code: neither blank, nor a comment, nor a docstring."""
    text = path.read_text()
    no_code = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in no_code and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                lines.difference_update(range(first, last + 1))
    return len(lines)


def main() -> None:
    """Print the numbers of every package that is installed."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder))
        for package, calls in CALLS.items():
            if find_spec(package) is None:
                print(f"{package}: not installed")
                continue
            _print_numbers(package, calls(paths))


def _print_numbers(package: str, calls: Calls) -> None:
    folder = Path(str(import_module(package).__file__)).parent
    print(package)
    for name, call in calls.items():
        found = passage_of(folder, call)
        print(f"  {name}: {len(found.files)} files, {found.changes} changes of file")
    modules = modules_of(package, folder)
    graph = {name: imports_of(name, path, modules) for name, path in modules.items()}
    chain, left_out = longest_chain(graph)
    circles = f" (without {left_out} imports, which make circles)" if left_out else ""
    print(f"  longest chain of imports: {len(chain)} modules{circles}: {' > '.join(chain)}")
    print(f"  {len(modules)} modules, {sum(map(code_lines, modules.values()))} lines of code")


if __name__ == "__main__":
    main()
