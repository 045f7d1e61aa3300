"""CRC-32, as computed by java.util.zip.CRC32, for bodies, records and files.

The function is the compiled part's (0.07 µs for 1 KiB) or isal's (0.17 µs), which use instructions
of the processor, else zlib's (0.3 to 0.5 µs).
"""

from ogive.native import native

if native is not None:
    crc32 = native.crc32
else:
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32

__all__ = ["crc32"]
