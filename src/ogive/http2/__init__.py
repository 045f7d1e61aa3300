"""The server side of HTTP/2, without I/O: bytes in, events and bytes out. Source: RFC 9113, 7541.

It imports nothing else of ogive.
"""
