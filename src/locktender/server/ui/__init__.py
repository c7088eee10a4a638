"""The web UI: pages made on the server, refreshed live. docs/design/ui.md says how to add one."""
