"""A whole cluster in one thread, in virtual time: real name server, broker, producers and consumers
on a simulated machine.

``loop`` is the clock and the scheduler, ``network`` the connections, ``disk`` the files,
``cluster`` what runs on them, ``story`` the work, the faults and the verdict. ``python -m
tests.simulation SEED [OPERATIONS]`` tells one story; the same seed tells the same one.
"""
