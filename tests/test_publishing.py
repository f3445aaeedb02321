"""What several files say of one release agrees: version, dependencies, commands, Pythons."""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from virtualds.formats.zarr import VERSION
from virtualds.importing import EXTRAS, find_distribution

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
VERSIONS = (ROOT / "docs" / "reference" / "versions.md").read_text()

CALLED_ON_CONDA = {
    "blosc2": "python-blosc2",
    "dask": "dask-core",
    "eccodes": "python-eccodes",
    "matplotlib": "matplotlib-base",
    "netCDF4": "netcdf4",
}
ONLY_FROM_PIP = {"cast-value-rs", "deflate", "fastcrc", "pcodec", "zlib-into"}
FOR_DEVELOPERS = {"docs", "interop", "test"}
"""Extras that users do not install."""


def name_on_conda(requirements: Iterable[str]) -> Iterator[str]:
    """What the recipe says of some requirements of the project."""
    for requirement in requirements:
        stated = re.match(r"([\w-]+)(?:\[.*\])?(>=[\d.]+)", requirement)
        assert stated, f"{requirement} states no floor"
        if stated[1] not in ONLY_FROM_PIP:
            yield f"{CALLED_ON_CONDA.get(stated[1], stated[1])} {stated[2]}"


def fill_in(texts: Iterable[str]) -> list[str]:
    """Requirements of the recipe, with the variables of its context."""
    python_min = RECIPE["context"]["python_min"]
    return [text.replace("${{ python_min }}", python_min) for text in texts]


def test_the_recipe_and_the_citation_are_of_the_version_of_the_project() -> None:
    assert RECIPE["context"]["version"] == PROJECT["version"]
    assert CITATION["version"] == PROJECT["version"]


def test_the_changelog_begins_with_the_version_of_the_project() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    first = re.search(r"^## (\S+) \((unreleased|\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    assert first
    assert first[1] == PROJECT["version"]


def test_the_recipe_asks_for_what_the_project_asks_for() -> None:
    asked = fill_in(RECIPE["requirements"]["run"])
    floors = name_on_conda(PROJECT["dependencies"])
    assert asked == [f"python {PROJECT['requires-python']}", *floors]


def test_the_recipe_bounds_what_the_extras_install() -> None:
    extras = PROJECT["optional-dependencies"]
    listed = [r for extra in extras.keys() - FOR_DEVELOPERS for r in extras[extra]]
    assert RECIPE["requirements"]["run_constraints"] == sorted(set(name_on_conda(listed)))


def test_messages_know_the_packages_of_every_extra() -> None:
    listed = {
        extra: tuple(re.match(r"[\w-]+", requirement)[0] for requirement in requirements)  # type: ignore[index]
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra not in FOR_DEVELOPERS
    }
    assert listed == EXTRAS
    code = "".join(path.read_text() for path in (ROOT / "virtualds").rglob("*.py"))
    modules = re.findall(r'import_package\(\s*"([\w.]+)"', code)
    packages = {name for names in EXTRAS.values() for name in names}
    assert len(modules) > 10 and set(map(find_distribution, modules)) <= packages


def test_nothing_installs_a_name_that_is_on_no_index() -> None:
    """To be removed when virtualds is published."""
    texts = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for folder in ("virtualds", "virtualds_cli", "virtualds_server", "docs", "notebooks"):
        texts += [p for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".ipynb")]
    named = re.compile(
        r"virtualds\[[a-z]|(?:pip|uv|conda|mamba)[\w ]* (?:install|add) [^\n`]*\bvirtualds\b"
    )
    found = {str(path): named.findall(path.read_text()) for path in texts}
    assert not {path: names for path, names in found.items() if names}


def test_the_extra_for_all_servers_is_the_union_of_those_for_each() -> None:
    extras = PROJECT["optional-dependencies"]
    for name in ("s3", "gcs", "azure"):
        assert extras[name] == sorted(extras[name])
    assert extras["remote"] == sorted({*extras["s3"], *extras["gcs"], *extras["azure"]})
    assert set(extras["remote"]) <= set(extras["test"])


def test_the_recipe_builds_with_what_the_project_is_built_with() -> None:
    host = fill_in(RECIPE["requirements"]["host"])
    assert set(host[1:]) == {*PYPROJECT["build-system"]["requires"], "pip"}
    assert host[0] == f"python {PROJECT['requires-python'].removeprefix('>=')}.*"


def test_the_recipe_installs_the_commands_of_the_project() -> None:
    commands = [f"{name} = {target}" for name, target in PROJECT["scripts"].items()]
    assert RECIPE["build"]["python"]["entry_points"] == commands


def test_the_descriptions_agree() -> None:
    about = RECIPE["about"]
    assert about["summary"] == CITATION["abstract"] == PROJECT["description"]
    assert about["license"] == CITATION["license"] == PROJECT["license"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["authors"] == PROJECT["authors"]


def test_the_classifiers_name_the_pythons_that_the_page_of_versions_names() -> None:
    prefix = "Programming Language :: Python :: 3."
    minors = [int(c.removeprefix(prefix)) for c in PROJECT["classifiers"] if c.startswith(prefix)]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert f"Python 3.{minors[0]} to 3.{minors[-1]}" in VERSIONS


def test_the_page_of_versions_says_which_layout_is_written() -> None:
    written = re.search(r"^\| \[`zarr-v3`\]\([^)]*\) \| (\d+)\.\d+ \|", VERSIONS, re.MULTILINE)
    assert written
    assert int(written[1]) == VERSION
