"""The stacks of all threads and tasks of this process, for tools that ask for them (jstack)."""

import asyncio
import sys
import threading
import traceback


def stacks() -> str:
    """The threads, then the tasks of the running loop, but for this one, with the lines at which
    they wait.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        frames = "".join(
            line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)
        )
        parts.append(f"task {task.get_name()}\n{frames}")
    return "\n".join(parts)
