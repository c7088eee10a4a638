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
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e78", "color-brand-content": "#0b6e78"},
    "dark_css_variables": {"color-brand-primary": "#5cc8d2", "color-brand-content": "#5cc8d2"},
}
html_title = "Locktender"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
pygments_style = "friendly"
pygments_dark_style = "monokai"
