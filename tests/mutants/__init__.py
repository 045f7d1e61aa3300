"""Mutation tests: a fault is put into a copy of the source, and the tests must notice.

Named mutants (named.py) are faults that a broker or a client must never have. Tests with the marker
``kills`` say which of them they must notice. Random mutants (sites.py) are small changes of the
source, chosen by a seed. The tests nearest to a change must notice it.
``python -m tests.mutants --help`` runs both.
"""
