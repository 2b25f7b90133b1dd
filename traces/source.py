"""A trace's bytes: compression by magic bytes, byte-order mark, universal newlines, constant memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from traces.errors import TraceError

BLOCK_BYTES = 1 << 16
HEAD_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 28

GZIP, ZSTD, XZ, BZIP2 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh"
UTF8_MARK = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
PARQUET = b"PAR1"


class Readable(Protocol):
    """What is needed of an opened file."""

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; empty at the end."""

    def close(self) -> None:
        """Give the file back."""


class ZstdFile:
    """A zstd file read to its end: unlike a stream reader it tells a cut frame from a whole one."""

    def __init__(self, raw: BinaryIO) -> None:
        import zstandard

        self._raw = raw
        self._context = zstandard.ZstdDecompressor()
        self._frame = self._context.decompressobj()
        self._pending = b""
        self._started = False

    def read(self, size: int, /) -> bytes:
        """At least one byte unless the file ends. Raises EOFError where a frame is cut."""
        while True:
            data = self._pending or self._raw.read(size)
            self._pending = b""
            if not data:
                if self._started:
                    raise EOFError("the last zstd frame is cut")
                return b""
            self._started = True
            out = self._frame.decompress(data)
            if self._frame.eof:
                self._pending = self._frame.unused_data
                self._frame, self._started = self._context.decompressobj(), False
            if out:
                return out

    def close(self) -> None:
        """Close the file beneath."""
        self._raw.close()


class Source:
    """One file of text, whatever its compression; every method reads it from the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir():
            raise TraceError(f"{path}: is a directory, not a trace file")
        if not path.exists():
            raise TraceError(f"{path}: no such file")

    def open(self) -> Readable:
        """The decompressed bytes."""
        try:
            raw = self.path.open("rb")
            magic = raw.read(6)
            raw.seek(0)
        except OSError as error:
            raise TraceError(f"{self.path}: {error.strerror or error}") from None
        if magic.startswith(GZIP):
            return cast(Readable, gzip.GzipFile(fileobj=raw))
        if magic.startswith(ZSTD):
            return ZstdFile(raw)
        if magic.startswith(XZ):
            return cast(Readable, lzma.LZMAFile(raw))
        if magic.startswith(BZIP2):
            return cast(Readable, bz2.BZ2File(raw))
        return raw

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """Decompressed blocks without the byte-order mark.

        Raises TraceError for a truncated or damaged compressed file and for a binary or UTF-16 one.
        """
        stream = self.open()
        place, first = 0, True
        try:
            while block := self._read(stream, size, place):
                if first:
                    block, first = self._checked_start(block), False
                place += len(block)
                if block:
                    yield block
        finally:
            stream.close()

    def _read(self, stream: Readable, size: int, place: int) -> bytes:
        try:
            return stream.read(size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise self._damaged(error, place) from None
        except Exception as error:
            if type(error).__module__.startswith("zstandard"):
                raise self._damaged(error, place) from None
            raise

    def _damaged(self, error: Exception, place: int) -> TraceError:
        return TraceError(f"{self.path}: truncated or damaged after {place} decompressed bytes: {error}")

    def _checked_start(self, block: bytes) -> bytes:
        if block.startswith(UTF8_MARK):
            return block[len(UTF8_MARK) :]
        if block.startswith(UTF16_MARKS):
            raise TraceError(f"{self.path}:1: is UTF-16 text; convert it to UTF-8")
        if b"\x00" in block[:8192]:
            raise TraceError(f"{self.path}: is a binary file, not a trace in text")
        return block

    def head(self) -> bytes:
        """The first 64 KiB or less, decompressed."""
        stream = self.open()
        try:
            got = b""
            while len(got) < HEAD_BYTES and (more := self._read(stream, HEAD_BYTES - len(got), len(got))):
                got += more
        finally:
            stream.close()
        return got if got.startswith(PARQUET) else self._checked_start(got)

    def whole(self) -> bytes:
        """The whole text, for formats that are one JSON document."""
        return b"".join(self.blocks())

    def line_blocks(self) -> Iterator[tuple[int, bytes]]:
        """(number of the first line, whole lines as one chunk); the last line may lack its end."""
        tail, number = b"", 1
        for block in self.blocks():
            data = tail + block
            # A lone CR at the very end may be half of a CRLF, so it ends no line yet.
            cut = data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1
            if cut:
                yield number, data[:cut]
                number += len(data[:cut].splitlines())
            tail = data[cut:]
            if len(tail) > LONGEST_LINE_BYTES:
                raise TraceError(f"{self.path}:{number}: a line longer than {LONGEST_LINE_BYTES} bytes")
        if tail:
            yield number, tail

    def byte_lines(self) -> Iterator[tuple[int, list[bytes]]]:
        """(number of the first line, lines without their ends), in batches."""
        for number, data in self.line_blocks():
            yield number, data.splitlines()

    def text_lines(self) -> Iterator[tuple[int, list[str]]]:
        """As :meth:`byte_lines`, decoded; bytes that are not UTF-8 become U+FFFD and fail where they matter.

        Not ``str.splitlines``: that also breaks at U+2028, form feeds and the like inside a cell.
        """
        for number, data in self.line_blocks():
            text = data.decode("utf-8", "replace")
            if "\r" in text:
                text = text.replace("\r\n", "\n").replace("\r", "\n")
            yield number, text.removesuffix("\n").split("\n")
