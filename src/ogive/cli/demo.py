"""``ogive demo``: see ogive.demo."""

import argparse


def run(options: argparse.Namespace) -> int:
    """0 when every figure agrees, 1 when one differs."""
    from ogive.demo.run import main

    return main(options)
