"""How the pages are built: ``make docs``."""

from importlib.metadata import version as version_of

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
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"virtualds {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# Notebooks are kept without outputs, so each build runs them; one that fails stops the build.
nb_execution_mode = "force"
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
