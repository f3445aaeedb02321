"""How the pages are built: ``make docs``."""

import os
import re
from importlib.metadata import version as version_of

import click

from virtualds_cli.program import main

project = "virtualds"
author = "The virtualds developers"
copyright = author
release = version_of("virtualds")
version = release

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build", "_templates", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"virtualds {release}"
# `.ci/build-versions` says where the list of versions lies, as seen from the first page.
if versions_page := os.environ.get("DOCS_VERSIONS"):
    templates_path = ["_templates"]
    html_context = {"versions_page": versions_page}
    html_sidebars = {
        "**": [
            "sidebar/brand.html",
            "sidebar/versions.html",
            "sidebar/search.html",
            "sidebar/scroll-start.html",
            "sidebar/navigation.html",
            "sidebar/scroll-end.html",
        ]
    }

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Notebooks are kept with their outputs, which the tests compare with what they print now. The
# gallery is made anew by each build: its head says so.
nb_execution_mode = "off"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

default_role = "py:obj"
# Several classes have a `shape`; a docstring that speaks of one means its own.
suppress_warnings = ["ref.python"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autosummary_generate = False
napoleon_google_docstring = False
# As fields of the class: a dataclass would otherwise describe each attribute twice.
napoleon_use_ivar = True
napoleon_use_rtype = False


def show_help(app, docname, source):
    """Put the help of each command where a page has ``<!-- help: COMMAND -->``."""

    def shown(match):
        name = match["name"]
        command = main if name == "virtualds" else main.commands[name]
        settings = {**main.context_settings, "terminal_width": 80}
        context = click.Context(main, info_name="virtualds", **settings)
        if command is not main:
            context = click.Context(command, context, info_name=name)
        return f"```text\n{command.get_help(context)}\n```"

    source[0] = re.sub(r"<!-- help: (?P<name>\S+) -->", shown, source[0])


def setup(app):
    """Let pages show the help of commands as it is."""
    app.connect("source-read", show_help)
