"""Downloads that resume, are checked and appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import httpx

from traces.catalogue import Entry
from traces.errors import TraceError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60.0
MIRROR_VARIABLE = "LOADGEN_TRACE_MIRROR"


def address(entry: Entry, mirror: str | None) -> str:
    """The entry's own address, or its file name below a mirror (option, else LOADGEN_TRACE_MIRROR)."""
    mirror = mirror or os.environ.get(MIRROR_VARIABLE)
    return f"{mirror.rstrip('/')}/{entry.file_name}" if mirror else entry.url


def fetch(
    entry: Entry,
    folder: Path,
    *,
    mirror: str | None = None,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """The file in ``folder``, downloaded if it is not there yet.

    A broken download is continued with a Range request guarded by its ETag. Digest and size are
    checked where the catalogue knows them, before the file gets its name. Raises TraceError.
    """
    target = folder / entry.file_name
    if target.exists():
        check(entry, target, target)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial, tag = folder / f".{entry.file_name}.partial", folder / f".{entry.file_name}.etag"
    url = address(entry, mirror)
    try:
        _download(url, partial, tag, progress)
    except httpx.HTTPError as error:
        raise TraceError(f"{url}: {error or type(error).__name__}; run again to continue") from None
    except OSError as error:
        raise TraceError(f"{partial}: {error.strerror or error}") from None
    try:
        check(entry, partial, target)
    except TraceError:
        # A whole but wrong file must not be continued for ever.
        partial.unlink()
        raise
    finally:
        tag.unlink(missing_ok=True)
    partial.replace(target)
    return target


def _download(url: str, partial: Path, tag: Path, progress: Callable[[int, int | None], None] | None) -> None:
    have = partial.stat().st_size if partial.exists() and tag.exists() else 0
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag.read_text()}
    with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT_S) as response:
        if response.status_code == 416:
            # Nothing is left: the earlier run broke off after the last byte.
            return
        if response.status_code not in (200, 206):
            raise TraceError(f"{url}: HTTP {response.status_code}")
        resumed = response.status_code == 206
        done = have if resumed else 0
        left = response.headers.get("content-length")
        total = done + int(left) if left else None
        etag = response.headers.get("etag", "")
        if etag and not etag.startswith("W/"):
            tag.write_text(etag)
        elif not resumed:
            tag.unlink(missing_ok=True)
        with partial.open("ab" if resumed else "wb") as out:
            for chunk in response.iter_raw(CHUNK_BYTES):
                out.write(chunk)
                done += len(chunk)
                if progress:
                    progress(done, total)
            out.flush()
            os.fsync(out.fileno())
        if total is not None and done != total:
            raise TraceError(f"{url}: {done} of {total} bytes came; run again to continue")


def check(entry: Entry, path: Path, shown: Path) -> None:
    """Size and SHA-256 where they are known. Raises TraceError naming both digests."""
    size = path.stat().st_size
    if entry.bytes is not None and size != entry.bytes:
        raise TraceError(f"{shown}: {size} bytes, the catalogue says {entry.bytes}")
    if entry.sha256 is None:
        return
    digest = hashlib.sha256()
    with path.open("rb") as data:
        while block := data.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != entry.sha256:
        raise TraceError(f"{shown}: sha256 {digest.hexdigest()}, the catalogue says {entry.sha256}")
