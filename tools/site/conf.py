"""Sphinx: Markdown pages, Furo (dark mode, search in the browser), copy buttons; no CDN."""

project = "Locktender"
author = "The Locktender authors"
copyright = author  # noqa: A001 — Sphinx reads this name
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["project/files"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
html_theme = "furo"
html_title = "Locktender"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
pygments_style = "friendly"
pygments_dark_style = "monokai"
