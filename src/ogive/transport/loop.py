"""The event loop that everything of ours runs on."""

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (the extra ``fast``), else the standard one. It saves about a seventh of a broker's work."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
