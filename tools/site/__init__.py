"""The documentation site: pages from docs/, reference pages from the code, and Sphinx."""
