"""CRC-32 as Java's java.util.zip.CRC32 computes it: of bodies, records and files.

isal's where it is installed (the extra ``fast``), which uses the processor's own instructions: 1 KiB takes 0.1 us instead of 0.5.
"""

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
