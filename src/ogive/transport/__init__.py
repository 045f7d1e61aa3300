"""Asyncio TCP and TLS: frames in and out, answers matched to requests, limits and timeouts.

Knows nothing of topics or offsets.
"""
