"""Locktender inside applications: `starlette` for Starlette and FastAPI, `django` for Django's tasks."""
