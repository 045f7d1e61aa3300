"""T34: every decoder under mutated input. ``python -m tests.fuzz DECODER SECONDS`` searches;
tests/rel/test_fuzz.py replays the corpus.
"""
