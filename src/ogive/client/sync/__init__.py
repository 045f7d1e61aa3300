"""The blocking facade over ``ogive.aio``, for scripts, threads and jobs.

A test keeps signatures and docstrings equal.

Objects may be used from any thread of the process that made them. They cannot be pickled or used in
a forked child.
"""
