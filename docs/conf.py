# SPDX-FileCopyrightText: Copyright (c) 2026 trio-worker contributors
# SPDX-License-Identifier: Apache-2.0

"""The site: ``make docs``. Warnings are errors, and nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "tools")]

from docstrings import to_rst  # noqa: E402  # beside this file, no package

project = "trio-worker"
author = "trio-worker contributors"
copyright = "2026 trio-worker contributors"

root_doc = "index"
exclude_patterns = ["README.md"]  # the index of the folder; index.md includes it
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinxcontrib_trio",  # `await f()` and `async with f()` in signatures
]

html_theme = "furo"
html_title = "trio-worker"
html_copy_source = False

myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}
# Large, slow to import, and of no interest here: the pages speak of our code.
autodoc_mock_imports = [
    "dynamo",
    "gpu_memory_service",
    "psutil",
    "sglang",
    "torch",
    "transformers",
    "zmq",
]

nitpicky = True
# Types in signatures: others' have no page here, and private ones and variables none anywhere.
nitpick_ignore_regex = [(r"py:.*", r".*")]
# Annotations that are for type checkers only are names without a module.
suppress_warnings = ["ref.python"]


class Modules(SphinxDirective):
    """Every module of a package, by name; packages within it have sections of their own."""

    required_arguments = 1

    def run(self) -> list[Any]:
        """Sphinx calls this."""
        package = self.arguments[0]
        folder = ROOT.joinpath(*package.split("."))
        names = sorted(file.stem for file in folder.glob("*.py") if file.stem != "__main__")
        modules = [package, *(f"{package}.{name}" for name in names if name != "__init__")]
        return self.parse_text_to_nodes("".join(f".. automodule:: {name}\n\n" for name in modules))


def plain_text(app: Any, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Docstrings are no reStructuredText; the flavour that they begin with is set in bold."""
    lines[:] = to_rst(lines)


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.add_directive("modules", Modules)
    app.connect("autodoc-process-docstring", plain_text)
