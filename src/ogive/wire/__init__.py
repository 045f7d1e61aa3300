"""Bytes to objects and back: pure functions and dataclasses, no sockets, no clock, no logging."""
