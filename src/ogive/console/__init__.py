"""The web console: pages about a cluster, ours or Apache's.

They are read-only, unless actions are switched on; each action has its command.

The only place that imports starlette, uvicorn and jinja2 (the extra ``console``).
"""
