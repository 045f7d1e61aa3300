"""The compiled part, or None where it was not built or OGIVE_NATIVE=0 says to do without.

It is a few functions in C (native/ in the repository), each the twin of one in Python that is
tested to do the same. The twin is the rule: it does the work wherever this is None, and for all
that is unusual or wrong: there a compiled function returns None, or stops before it.
"""

import importlib
import os
import zlib
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

Buffer = bytes | bytearray | memoryview
Buffers = tuple[bytes | None, ...]
"""Buffers of one Arrow column, in Arrow's order."""
Named = TypeVar("Named", bound=tuple[Any, ...])

Wanted = tuple[int, int, int]
"""a record that a queue speaks of: commit-log offset, size, queue offset"""
Texts = tuple[bool, int, Any, Any, Any]
"""An Arrow column of texts: whether they are UTF-8, where its first row is in the buffers; validity
or None, ends, data or None.
"""


class Native(Protocol):
    """The compiled part: its functions, and the storage of a MessageExt."""

    MessageFields: type

    Handle: type[Any]
    """Base class of SendHandle. Twin: Handle in ogive.client.sending.handle."""

    def columns(
        self, records: bytes, names: tuple[str, ...], /
    ) -> tuple[int, list[Buffers]] | None:
        """Return the number of stored messages in *records*, and these columns of them.

        Hosts are numbers. Properties are five buffers: the end of each row's entries, the end of
        each name, the names, the end of each value, the values. None if a record is not in the
        plain form or has irregular properties.

        Twin: RecordDecoder in ogive.spark.decode.
        """

    def encode_rows(
        self,
        rows: int,
        body: Texts,
        tags: Texts | None,
        keys: Texts | None,
        head: bytes,
        first: int,
        most_bytes: int,
        most_rows: int,
        /,
    ) -> list[tuple[int, bytes]] | None:
        """Return the *rows* as batches of messages: the number of rows and the body of each.

        *first* is the first row's number.

        None if a row has no body, or one that is too long for a batch, or a tag or keys that are
        not stored as they are. Twin: form() in ogive.spark.rows, then split_by_size() and
        encode_batch().
        """

    def crc32(self, data: Buffer, before: int = 0, /) -> int:
        """Return the checksum that zlib.crc32() returns."""

    def frames(self, data: bytes, limit: int, /) -> tuple[list[bytes], int]:
        """Return the whole frames at the beginning of *data*, and where they end.

        Twin: FrameDecoder in ogive.wire.command.
        """

    def binary_command(
        self, frame: bytes, /
    ) -> tuple[int, dict[str, str], bytes, int, int, None, int, int, int] | None:
        """Return the fields of a RemotingCommand, from a frame with a binary header.

        Twin: decode_command() in ogive.wire.command.
        """

    def index_items(
        self,
        keyed: list[tuple[bytes, bytes, int, int] | tuple[bytes, int]],
        slots: "array[int]",
        begin_ms: int,
        item: int,
        limit: int,
        /,
    ) -> tuple[bytes, int, int, int] | None:
        """Return the items that records add to a file of the index of keys, the number of slots
        they are the first of, and the commit-log offset and store timestamp of the last.

        Changes *slots*. Twin: KeyIndex.build() in ogive.store.key_index.
        """

    def properties(self, raw: Buffer, /) -> dict[str, str] | None:
        """Return stored properties as a dict. Twin: decode_properties() in ogive.wire.message."""

    def properties_text(self, properties: Mapping[str, str], /) -> bytes | None:
        """Return properties as they are stored.

        Twin: encode_properties() in ogive.wire.message.
        """

    def read_sends(
        self,
        forms: tuple[Any, ...],
        frames: list[bytes],
        at: int,
        most: int,
        most_bytes: int,
        most_body: int,
        origin: Any,
        /,
    ) -> list[Any]:
        """Return requests to store messages and to end transactions, of the types *forms*.

        The list ends before the first frame that is not in the usual form; it is never None.
        Twin: read_sends_in_python() in ogive.wire.sends.
        """

    def chosen(
        self,
        entries: bytes,
        tags: frozenset[int] | None,
        wanted: list[Wanted],
        offset: int,
        total: int,
        most: int,
        most_bytes: int,
        log_start: int,
        /,
    ) -> tuple[int, int, bool, bool] | None:
        """Select the records of consume-queue entries to read.

        Twin: _choose() in ogive.store.queue_reader.
        """

    def messages(
        self,
        buffer: bytes | memoryview,
        at: int,
        checked: bool,
        into: list[Any],
        broker_name: str,
        forms: tuple[Any, ...],
        /,
    ) -> int:
        """Add the usual messages from *at* on to *into*. Return where the first unusual one, or the
        end, is.

        Twin: decode_some() in ogive.wire.message.
        """

    def measure(self, messages: Sequence[Any], /) -> tuple[int, bool, bool] | None:
        """Return the size of the bodies, whether offsets ascend, and whether one is compressed.

        None for messages of another class. Twin: measure() in ogive.wire.message.
        """

    def near(
        self, wanted: list[Wanted], at: int, limit: int, gap: int, /
    ) -> tuple[int, int, int] | None:
        """Return the entries that follow wanted[at] near by in the log. Twin: _near() in
        ogive.store.commitlog.
        """

    def inside(self, wanted: list[Wanted], at: int, start: int, end: int, /) -> int | None:
        """Return one past the last of wanted[at] and its followers between start and end.

        Twin: _end_inside() in ogive.store.commitlog.
        """

    def picked(
        self, wanted: list[Wanted], start: int, data: bytes, /
    ) -> tuple[list[memoryview], int] | None:
        """Return views of these records in *data*, neighbours in one, and their size in bytes.

        Twin: _pick() in ogive.store.commitlog.
        """

    def whole_records(
        self, block: bytes, at: int, position: int, limit: int, most: int, record: type[Named], /
    ) -> tuple[list[tuple[int, Named, bytes, int]], int] | None:
        """Return the whole records from *at* on, and where they end in the log.

        The list ends before the first record that the twin has to check.

        Twin: read_record() in ogive.store.record.
        """

    def doubtful(
        self,
        data: bytes,
        base: int,
        wanted: list[Wanted],
        queue_id: int,
        field: bytes,
        sound: bool,
        /,
    ) -> list[Wanted] | None:
        """Return the wanted records that are not plainly the ones meant: the twin checks these.

        Twin: not_standing() in ogive.store.record.
        """

    def batch_items(self, body: bytes, most: int, item: type[Named], /) -> list[Named] | None:
        """Return the BatchItems that the body of a batch holds.

        Twin: decode_batch() in ogive.wire.message.
        """

    def batch_body(self, items: list[tuple[int, bytes, bytes]], /) -> bytes | None:
        """Return the body of a batch. Twin: encode_batch() in ogive.wire.message."""

    def plain_batch(
        self, data: bytes, start: int, starts: tuple[bytes, ...], most: int, /
    ) -> int | None:
        """Return the number of messages in the batch that data[start:] is.

        None if it holds none or more than *most*, if lengths do not add up, and if properties fit
        no record or one begins with one of *starts*. Twin: _checked() in ogive.broker.sends.plan.
        """

    def encode_answers(
        self,
        answers: list[Any],
        places: list[Any],
        region: str,
        store_host: bytes,
        version: int,
        /,
    ) -> bytes:
        """Return answers to sends. Twin: encode_answers_in_python() in ogive.wire.sends."""

    def build_records(
        self,
        messages: tuple[tuple[Any, ...], ...],
        queues: tuple[tuple[tuple[str, int, bytes, bytes], int], ...],
        position: int,
        room: int,
        otherwise: int,
        stored_ms: int,
        with_crc: bool,
        result: type[Named],
        /,
    ) -> tuple[
        bytes, list[bytes], list[tuple[bytes, bytes, int, int] | tuple[bytes, int]], list[Named]
    ]:
        """Return records of the commit log.

        Twin: build_records_in_python() in ogive.store.record.
        """


def _found() -> tuple[Native | None, str]:
    """Return the compiled part or None, and a description of it."""
    if os.environ.get("OGIVE_NATIVE") == "0":
        return None, "pure Python, as OGIVE_NATIVE=0 says"
    try:
        found = importlib.import_module("ogive._native")
        sources = _sources()
    except ModuleNotFoundError:
        return None, "pure Python"
    except (ImportError, OSError) as exc:
        return None, f"pure Python, as the compiled part cannot be loaded: {exc}"
    if sources is not None and sources != getattr(found, "sources", None):
        return (
            None,
            "pure Python, as the compiled part is not of these sources: install ogive again",
        )
    return cast(Native, found), "with its compiled part"


def _sources() -> int | None:
    """Return the hash of native/ that hatch_build.py wrote, in a clone, where it may have changed
    since; None in an installed package.
    """
    files = sorted((Path(__file__).parent.parent.parent / "native").glob("*.[ch]"))
    if "module.c" not in [path.name for path in files]:
        return None
    return zlib.crc32(b"".join(path.read_bytes() for path in files)) & 0x7FFFFFFF


_FOUND: Final = _found()
native: Final = _FOUND[0]
build: Final = _FOUND[1]
"""Build of this ogive, with the compiled part or pure Python, for logs and --version."""
