"""Figures in sentences."""


def counted(number: int, word: str) -> str:
    """``1 queue``, ``1,200 queues``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
