"""Settings of the documentation: ``sphinx-build -W --keep-going -b html docs docs/_build/html``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import sharedspan

project = "sharedspan"
author = copyright = "The sharedspan developers"
version = release = sharedspan.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "plain_docstrings",
    "example_report",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.py", "gallery/*.ipynb"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = f"sharedspan {release}"
html_static_path = ["_static"]
html_css_files = ["sharedspan.css"]
html_show_sourcelink = False
html_copy_source = False

highlight_language = "none"  # indented blocks hold formulas
smartquotes_action = "D"  # dashes alone: R W' is a transpose

myst_heading_anchors = 3

autodoc_typehints = "none"  # the docstrings say it in words, with shapes
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "within_subsection_order": "gallery.Order",
    "doc_module": ("sharedspan",),
    "backreferences_dir": None,
    "reference_url": {"sharedspan": None},
    "download_all_examples": False,
    "thumbnail_size": (460, 280),
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 3600,  # seconds: pages do not change with the machine
    "reset_modules": ("matplotlib", "gallery.set_style"),
}
