"""Sphinx's settings: the pages of docs/ as one site. `make docs` builds it.

The source folder is the root of the tree, because the pages link to the README, the results
of the benchmarks and the examples. contents.py makes the side bar, reference.py the reference.
"""

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT / "python")]

import contents  # noqa: E402
import reference  # noqa: E402

project = "Octet"
author = "the Octet contributors"
release = version = reference.version()

extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["docs/**", *contents.OTHERS]
exclude_patterns = ["docs/requirements.txt", "**/__pycache__", ".*", "build*"]
root_doc = contents.PAGE
source_suffix = {".md": "markdown"}

myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
maximum_signature_line_length = 88

highlight_language = "none"  # a block without a language is no Python
html_theme = "furo"
html_title = f"Octet {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["pictures"]
html_css_files = ["book.css"]
html_theme_options = {"navigation_with_keys": True}


def setup(app: Any) -> None:  # noqa: ANN401
    """What happens to a page before it is read, and to the site when it is built."""
    app.connect("source-read", contents.add_contents)
    app.connect("source-read", reference.add_reference)
    app.connect("autodoc-process-docstring", reference.link_pages)
    app.connect("build-finished", contents.add_front_door)
