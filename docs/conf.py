"""How the documentation is built: ``make docs``. Nothing is fetched from anywhere."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

project = "replaybank"
author = "The replaybank developers"
copyright = author
release = importlib.metadata.version("replaybank")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"replaybank {version}"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]

# Prompts and outputs are not copied with an example.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False  # "Returns: Where it went: an int" is one sentence, no type
napoleon_custom_sections = ["Complexity"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autosummary_generate = False  # tables of what a page has, no pages of their own
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

# The pages' examples only: those in docstrings are run by pytest, each in its own module.
doctest_test_doctest_blocks = ""
doctest_global_setup = f"""
import warnings
from pathlib import Path
warnings.simplefilter("error")
DOCS = Path({str(Path(__file__).parent)!r})
"""
