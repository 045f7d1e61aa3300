"""The web console: read-only pages about a cluster, ours or Apache's.

Changes are made with the command line.

The only place that imports starlette, uvicorn and jinja2 (the extra ``console``).
"""
