"""Fetching against a local server: whole, resumed, checked, atomic, mirrored."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from traces.catalogue import CATALOGUE, Entry, entry_of
from traces.errors import TraceError
from traces.fetch import fetch
from traces.readers import READERS

DATA = bytes(range(256)) * 4096


class Server(ThreadingHTTPServer):
    """Serves DATA with ranges; ``cut_at`` breaks the first answer off; ``etag`` names the version."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.cut_at, self.etag, self.data, self.ranges = None, '"v1"', DATA, []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path != "/set.csv":
            self.send_error(404)
            return
        server, start = self.server, 0
        wanted = self.headers.get("Range")
        server.ranges.append(wanted)
        if wanted and self.headers.get("If-Range") == server.etag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.data):
                self.send_error(416)
                return
        body = server.data[start:]
        self.send_response(206 if start else 200)
        self.send_header("ETag", server.etag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, server.cut_at = server.cut_at, None
        self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


@pytest.fixture
def server():
    with Server() as running:
        thread = Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def entry(server):
    digest = hashlib.sha256(DATA).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/set.csv"
    return Entry("made-up", url, "azure-llm", "CC0-1.0", "nobody", digest, len(DATA))


def test_a_file_is_fetched_whole_and_not_again(server, entry, tmp_path):
    steps = []
    path = fetch(entry, tmp_path / "new", progress=lambda done, total: steps.append((done, total)))
    assert path.read_bytes() == DATA
    assert steps[-1] == (len(DATA), len(DATA))
    fetch(entry, tmp_path / "new")
    assert len(server.ranges) == 1
    assert [p.name for p in path.parent.iterdir()] == ["set.csv"]


def test_a_broken_download_leaves_no_file_and_is_continued_where_it_broke(server, entry, tmp_path):
    server.cut_at = 300_000
    with pytest.raises(TraceError, match="run again to continue"):
        fetch(entry, tmp_path)
    assert not (tmp_path / "set.csv").exists()
    assert fetch(entry, tmp_path).read_bytes() == DATA
    assert server.ranges[0] is None
    assert server.ranges[1].startswith("bytes=")
    assert server.ranges[1] != "bytes=0-"


def test_a_file_that_changed_meanwhile_is_fetched_anew_not_patched_together(server, entry, tmp_path):
    server.cut_at, server.data = 300_000, b"x" * len(DATA)
    with pytest.raises(TraceError):
        fetch(entry, tmp_path)
    server.etag, server.data = '"v2"', DATA
    assert fetch(entry, tmp_path).read_bytes() == DATA


def test_a_wrong_digest_or_size_is_an_error_and_no_file_stays(entry, tmp_path):
    with pytest.raises(TraceError, match=r"set\.csv: sha256 .* the catalogue says 000"):
        fetch(replace(entry, sha256="0" * 64), tmp_path)
    with pytest.raises(TraceError, match="the catalogue says 5"):
        fetch(replace(entry, bytes=5), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_is_asked_instead_by_option_or_environment(server, entry, tmp_path, monkeypatch):
    mirror = entry.url.removesuffix("/set.csv")
    elsewhere = replace(entry, url="http://127.0.0.1:1/far/set.csv")
    assert fetch(elsewhere, tmp_path / "a", mirror=mirror + "/").read_bytes() == DATA
    monkeypatch.setenv("LOADGEN_TRACE_MIRROR", mirror)
    assert fetch(elsewhere, tmp_path / "b").read_bytes() == DATA
    monkeypatch.delenv("LOADGEN_TRACE_MIRROR")
    with pytest.raises(TraceError, match="run again"):
        fetch(elsewhere, tmp_path / "c")


def test_a_missing_file_at_the_source_is_said(entry, tmp_path):
    with pytest.raises(TraceError, match="HTTP 404"):
        fetch(replace(entry, url=entry.url.replace("set", "gone")), tmp_path)


def test_every_entry_has_a_known_format_a_licence_a_citation_and_its_own_file():
    assert {entry.format for entry in CATALOGUE.values()} <= set(READERS)
    assert all(
        entry.licence and entry.citation and entry.url.startswith("https://") for entry in CATALOGUE.values()
    )
    assert len({entry.url for entry in CATALOGUE.values()}) == len(CATALOGUE)
    with pytest.raises(TraceError, match="choose one of azure-code-2023"):
        entry_of("azure")


def test_the_digests_are_those_of_the_files(shared):
    lines = (shared / "traces/MANIFEST.tsv").read_text().splitlines()[1:]
    known = {line.split("\t")[2]: int(line.split("\t")[1]) for line in lines}
    for entry in CATALOGUE.values():
        if entry.sha256:
            assert known[entry.sha256] == entry.bytes
