"""The public surface of ogive as lists of lines, one line for each thing that users rely on.

    python -m tests.surface            compare the stored lists with this checkout
    python -m tests.surface --write    add what is new to the stored lists

The stored lists hold the surface of commit 4d913277 and every addition since. A line that is stored
and no longer true is a broken promise, see ``lines.faults``. An addition passes.

The lists are made from what users import, and by running the command. What else they need from
ogive is imported in ``inside.py`` alone, so that moved code changes one place.
"""
