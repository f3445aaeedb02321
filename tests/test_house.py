"""The house holds: who may import whom, which names exist, and what importing them costs."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import virtualds

PACKAGE = Path(__file__).parents[1] / "virtualds"
FILES = sorted(PACKAGE.rglob("*.py"))

# A file imports only from lower floors. A folder stands on the floor of its name.
FLOORS = (
    {"checksum", "decompressors", "errors", "grid", "in_turn", "joined_table", "options"}
    | {"scatter_read"}
    | {
        "grib_sections",
        "json_numbers",
        "keywords",
        "packed_columns",
        "regular_axis",
    }
    | {"urls"},
    {"manifest", "codec", "packing", "json_attributes", "build_report"}
    | {"access", "bounds", "file_lock", "libdeflate", "strict_json", "text"},
    {"codecs", "store", "archive_index"} | {"lazy_manifest", "records"},
    {"stores", "fragment", "blocks", "hdf5_lookahead", "even_manifest", "store_errors"},
    {
        "matching",
        "read",
        "scan",
        "stored_blocks",
        "duck_array",
        "display",
        "referenced_files",
        "chunk_mesh",
    }
    | {"fence", "fill"},
    {"fragmented"},
    {"array", "headers", "icechunk_references", "kerchunk_references"},
    {"group", "zarr_metadata", "concatenation", "comparison"}
    | {"fill_values", "tiff_pages"}
    | {"source_files"},
    {"lazy", "storage_notes", "time_packing", "numpy_functions", "indexing"}
    | {"record_changes", "varying_array", "archived", "flat_arrays", "undecodable"}
    | {"parser"},
    {"decoding", "source_positions", "hdf5", "structure", "zarr_hierarchy", "zarr_v3"}
    | {"references_behind", "loaded_values", "admission"},
    {"parsers", "formats", "dataset", "zarr_decoded", "duplicates"},
    {"appending", "detection", "materialize", "tree", "zarr_served"},
    {"api", "zarr_view"},
    {"writing", "flat", "verification"},
    {"lazy_copy"},
    {"accessor", "building", "description", "zarr_adapter"} | {"upgrading"},
    {"backend", "combine", "tree_accessor", "zarr_python"},
    {"demo", "diagnosis"},
    {"__init__"},
)
# The files of a folder never import each other, unless they are the stages of one path. Then a
# later stage may import an earlier one.
STAGES = {
    "building": (
        "progress",
        "files",
        "file_coordinates",
        "sequence",
        "extents",
        "arrangement",
        "kept_group",
        "cache",
        "stored_file",
        "decoded_file",
        "opening",
        "script_guard",
        "processes",
        "dask_jobs",
        "workers",
        "combining",
        "preparing",
        "alike",
        "target",
        "by_stretches",
        "build",
        "whole",
    ),
    "decoding": ("part", "outline"),
    "diagnosis": (
        "forms",
        "report",
        "courses",
        "joining",
        "meanings",
        "verdicts",
        "survey",
        "findings",
    ),
    "hdf5": (
        "data_types",
        "file_bytes",
        "object_header",
        "record_tree",
        "fractal_heap",
        "shared_messages",
        "dense_attributes",
        "attribute_messages",
        "type_messages",
        "global_heap",
        "chunk_table",
        "chunk_tree",
        "extensible_array",
        "file",
        "attributes",
        "structure",
        "dimensions",
        "chunk_indexes",
        "storage",
        "groups",
        "mapping",
        "heap_check",
        "values",
    ),
    "icechunk_references": ("places", "writers", "adapter", "chunks", "opened"),
    "zarr_v3": (
        "data_types",
        "axes",
        "codecs",
        "metadata",
        "chunk_keys",
        "json_table",
        "parquet_table",
        "manifests",
        "manifest_files",
        "arrays",
        "shards",
        "varying",
        "values",
        "document",
        "nodes",
        "planning",
        "part_writing",
        "snapshots",
        "snapshot_writing",
    ),
    "read": (
        "pool",
        "memory",
        "ranges",
        "keys",
        "load",
        "subdivide",
        "share",
        "tasks",
        "tiles",
        "plan",
        "cache",
        "decode",
        "ahead",
        "gather",
        "near",
        "failures",
        "fetch",
    ),
    "verification": (
        "report",
        "survey",
        "fingerprints",
        "members",
        "sampling",
        "stored",
        "places",
        "natives",
        "comparison",
    ),
    "stores": (
        "temporary",
        "local",
        "retry",
        "answer",
        "pace",
        "http_session",
        "obstore_options",
        "obstore_ranges",
        "fsspec_ranges",
        "versions",
        "fsspec_store",
        "archive",
    ),
}

# xarray comes in where values begin to be told as xarray tells them (CF times, lazy arrays).
XARRAY_FROM = 8
# Files below that floor which may import xarray all the same, and why.
XARRAY_BELOW: dict[str, str] = {}

PUBLIC = {
    "AccessError",
    "BuildReport",
    "ChunkAxis",
    "ChunkManifest",
    "CodecPipeline",
    "CombineError",
    "ConflictError",
    "Diagnosis",
    "Difference",
    "Era",
    "FormatError",
    "Fragment",
    "FromAttribute",
    "FromName",
    "ManifestArray",
    "ManifestGroup",
    "ManifestVariable",
    "Parser",
    "Progress",
    "ReadError",
    "SourceFile",
    "UnsupportedError",
    "Verification",
    "VirtualdsError",
    "convert",
    "diagnose",
    "drop_sources",
    "expire_snapshots",
    "open_flat",
    "open_source",
    "open_virtual_dataset",
    "open_virtual_datatree",
    "open_virtual_mfdataset",
    "open_virtual_mfdatatree",
    "set_options",
    "snapshots",
    "upgrade",
    "zarr_store",
}

# What lies below fsspec answers in coroutines; these ask it, within the time of a request.
COROUTINES = {"stores.pace", "stores.http_session", "stores.fsspec_ranges"}

# The files that are for zarr-python and for Icechunk, whose stores are those of zarr-python. They
# are imported only when somebody asks for them. There, one answers and waits in coroutines.
ADAPTERS = {"zarr_adapter", "icechunk_references.adapter"}

# What opening somebody else's file with xarray must not have to wait for.
HEAVY = {"dask", "distributed", "h5py", "icechunk", "kerchunk", "numcodecs", "pyarrow", "zarr"}

VAGUE = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "types", "utils"}


def module_of(path: Path) -> str:
    """The dotted name within the package; ``__init__`` for its root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def top(module: str) -> str:
    return module.partition(".")[0]


def floor_of(module: str) -> int:
    floors = [number for number, names in enumerate(FLOORS, 1) if top(module) in names]
    assert len(floors) == 1, f"{module} stands on no floor; add it to FLOORS"
    return floors[0]


MODULES = {module_of(path): path for path in FILES}
TREES = {module: ast.parse(path.read_text(), path) for module, path in MODULES.items()}


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute dotted name."""

    name: str
    line: int
    inside: bool

    @property
    def own(self) -> str | None:
        """The name within the package, or None for a module of somebody else."""
        if top(self.name) != "virtualds":
            return None
        return self.name.removeprefix("virtualds").lstrip(".") or "__init__"


def nodes(tree: ast.AST, inside: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it lies in a function."""
    yield tree, inside
    inside = inside or isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    for child in ast.iter_child_nodes(tree):
        yield from nodes(child, inside)


def imports(module: str) -> Iterator[Import]:
    for node, inside in nodes(TREES[module]):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, inside)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(module, node)
            for alias in node.names:
                # `from virtualds.codecs import zlib` imports a module, not a name in one.
                whole = f"{origin}.{alias.name}"
                is_module = whole.removeprefix("virtualds.") in MODULES
                yield Import(whole if is_module else origin, node.lineno, inside)


def absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ["virtualds", *module.split(".")]
    is_package = MODULES[module].name == "__init__.py" and module != "__init__"
    package = package[: len(package) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def own_imports(module: str) -> list[tuple[str, Import]]:
    return [(i.own, i) for i in imports(module) if i.own is not None and i.own != module]


def may_import(module: str, other: str) -> bool:
    if top(module) != top(other):
        return floor_of(module) > floor_of(other)
    if "." not in module:
        return True  # a folder's __init__ is the table of its files
    stages = STAGES.get(top(module), ())
    here, there = module.partition(".")[2], other.partition(".")[2]
    return here in stages and there in stages[: stages.index(here)]


def test_imports_only_from_lower_floors() -> None:
    wrong = [
        f"{module}:{i.line} (floor {floor_of(module)}) imports {other} (floor {floor_of(other)})"
        for module in MODULES
        for other, i in own_imports(module)
        if not may_import(module, other)
    ]
    assert not wrong


def test_no_import_circles() -> None:
    graph = {module: {other for other, _ in own_imports(module)} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_no_own_imports_inside_functions() -> None:
    inside = [f"{m}:{i.line}" for m in MODULES for _, i in own_imports(m) if i.inside]
    assert not inside


def test_xarray_only_on_the_upper_floors() -> None:
    below = [m for m in MODULES if floor_of(m) < XARRAY_FROM and m not in XARRAY_BELOW]
    assert not importers_of("xarray", below)


def test_the_lists_above_are_up_to_date() -> None:
    assert set.union(*FLOORS) == {top(module) for module in MODULES}
    stages = {f"{folder}.{name}" for folder, names in STAGES.items() for name in names}
    in_stages = {m for m in MODULES if "." in m and top(m) in STAGES}
    assert stages == in_stages
    assert set(XARRAY_BELOW) <= set(importers_of("xarray", MODULES))


def importers_of(library: str, modules: Iterable[str]) -> list[str]:
    return [m for m in modules if any(top(i.name) == library for i in imports(m))]


def test_zarr_is_only_the_oracle_of_the_tests() -> None:
    assert not importers_of("zarr", MODULES.keys() - ADAPTERS)


def test_no_catching_of_everything() -> None:
    handlers = [
        (f"{module}:{node.lineno}", node)
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
    ]
    assert not [where for where, h in handlers if catches_everything(h) and not raises_again(h)]


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(caught & {"Exception", "BaseException"})


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether it only tidies up before the error goes on its way."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_no_async() -> None:
    assert not places_of(
        ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith,
        MODULES.keys() - ADAPTERS - COROUTINES,
    )


def test_no_assert() -> None:
    assert not places_of(ast.Assert, MODULES)


def places_of(kind: Any, modules: Iterable[str]) -> list[str]:
    """Return where in the modules there are nodes of a kind."""
    found = ((module, node) for module in modules for node in ast.walk(TREES[module]))
    return [f"{module}:{node.lineno}" for module, node in found if isinstance(node, kind)]


def test_names_say_what_is_inside() -> None:
    assert not [m for m in MODULES if {part.strip("_") for part in m.split(".")} & VAGUE]


def test_first_line_says_what_the_file_is_for() -> None:
    assert not [module for module, tree in TREES.items() if not ast.get_docstring(tree)]


def test_public_names() -> None:
    assert set(virtualds.__all__) == PUBLIC
    assert len(virtualds.__all__) == len(PUBLIC)
    assert all(hasattr(virtualds, name) for name in PUBLIC)


def test_backend_is_cheap_to_import() -> None:
    code = """
import sys
import xarray
before = set(sys.modules)
import virtualds.backend
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert not HEAVY & set(out.stdout.split())


PROGRAM = sorted((PACKAGE.parent / "virtualds_cli").rglob("*.py"))
BEHIND_THE_PROGRAM = {
    "virtualds_cli.demo",
    "virtualds.checks.describe",
    "virtualds.stores.glob",
} | {"virtualds.datasets.write"}
"""What the command line uses besides the public names."""


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: path.stem)
def test_the_command_line_imports_the_library_only_when_a_command_runs(path: Path) -> None:
    tree = ast.parse(path.read_text(), path)
    assert ast.get_docstring(tree)
    # what is only for types is not imported
    typed = {id(c) for n in ast.walk(tree) if isinstance(n, ast.If) for c in ast.walk(n)}
    for node, inside in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typed:
            names = [alias.name for alias in node.names]
            modules = [node.module] if isinstance(node, ast.ImportFrom) else names
            for module in map(str, modules):
                if top(module) in ("virtualds", "xarray", "rich", "distributed"):
                    assert inside
                if top(module) == "virtualds":
                    assert module in BEHIND_THE_PROGRAM | {"virtualds"}


# ---------------------------------------------------------------------- what is to be installed

ROOT = PACKAGE.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = re.findall(
    r"^  - ([\w-]+)(?:>=([\d.]+))?$",
    (ROOT / "environment.yml").read_text().partition("\ndependencies:")[2],
    re.MULTILINE,
)
CALLED_ON_CONDA = {
    "blosc2": "python-blosc2",
    "eccodes": "python-eccodes",
    "matplotlib": "matplotlib-base",
    "netCDF4": "netcdf4",
}
ONLY_FROM_PIP = {"cast-value-rs", "deflate", "fastcrc", "icechunk", "isal", "pcodec"}
ONLY_FROM_PIP |= {"zlib-into", "zlib-ng"}
ONLY_FROM_CONDA = {"pip", "flask", "flask-cors"}
"""What installs the rest, and what moto's extra brings along."""
NOT_FOR_DEVELOPERS = {"rasterio", "tensorstore", "virtualizarr"}
"""Peers, with which the tests of interop run in an environment of their own."""


def floors_of_the_project() -> dict[str, set[str]]:
    """From which version on each library is needed, as every list of it says."""
    found: dict[str, set[str]] = {"python": {PROJECT["requires-python"].removeprefix(">=")}}
    for listed in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()):
        for requirement in listed:
            stated = re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)(?:;.*)?$", requirement)
            assert stated, f"{requirement} states no floor"
            found.setdefault(stated[1], set()).add(stated[2])
    return found


def test_the_lists_of_what_to_install_agree() -> None:
    project = floors_of_the_project()
    assert not {name: floors for name, floors in project.items() if len(floors) > 1}
    on_conda = {
        CALLED_ON_CONDA.get(name, name): floor
        for name, (floor,) in project.items()
        if name not in ONLY_FROM_PIP | NOT_FOR_DEVELOPERS
    }
    assert {n: f for n, f in ENVIRONMENT if n not in ONLY_FROM_CONDA} == on_conda
    assert len(dict(ENVIRONMENT)) == len(ENVIRONMENT)
    assert not ONLY_FROM_CONDA.difference(dict(ENVIRONMENT))
    assert not (ONLY_FROM_PIP | NOT_FOR_DEVELOPERS).union(CALLED_ON_CONDA).difference(project)
