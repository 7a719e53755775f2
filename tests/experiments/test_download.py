"""Fetching against a real HTTP server on this machine, one that can break off, ignore ranges and lie."""

from __future__ import annotations

import hashlib
import http.server
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest

from compensate.errors import InputError
from experiments.data.sources import fetch

CONTENT = np.random.default_rng(0).bytes(1_000_000)
SHA = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    url: str = ""
    content: bytes = CONTENT
    breaks: list[int] = field(default_factory=list)  # break off the n-th answer after so many bytes
    ranges: bool = True
    status: int = 200
    asked: list[str | None] = field(default_factory=list)
    length: str | None = None  # the stated length, if not the true one
    location: str | None = None  # a redirect


@contextmanager
def serve(**options):
    state = Server(**options)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            if state.location:
                self.send_response(302)
                self.send_header("Location", state.location)
                self.end_headers()
                return
            if state.status != 200:
                self.send_error(state.status)
                return
            body, start = state.content, 0
            if wanted and state.ranges:
                start = int(wanted.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(body)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            body = body[start:]
            self.send_header("Content-Length", state.length or str(len(body)))
            self.end_headers()
            cut = state.breaks.pop(0) if state.breaks else len(body)
            self.wfile.write(body[:cut])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/file.bin"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("checksum", [SHA, MD5, None])
def test_fetch(tmp_path, checksum):
    seen = []
    with serve() as server:
        path = fetch(
            server.url, tmp_path / "sub" / "f", checksum, progress=lambda done, total: seen.append((done, total))
        )
        again = fetch(server.url, tmp_path / "sub" / "f", checksum)
    assert path.read_bytes() == CONTENT
    assert again == path
    assert server.asked == [None], "what is there is not fetched again"
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert names(tmp_path / "sub") == ["f"], "no part and no lock is left"


def test_a_broken_transfer_goes_on_where_it_stopped(tmp_path):
    with serve(breaks=[400_000, 300_000]) as server:
        path = fetch(server.url, tmp_path / "f", SHA)
    assert path.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=400000-", "bytes=700000-"]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b"of another version" * 100, b""])
def test_a_complete_too_long_or_foreign_part_and_a_length_that_is_no_number(tmp_path, part):
    (tmp_path / "f.part").write_bytes(part)
    with serve(length=None if part else "-many") as server:
        assert fetch(server.url, tmp_path / "f", SHA).read_bytes() == CONTENT
    assert names(tmp_path) == ["f"]


def test_a_wrong_checksum_leaves_nothing(tmp_path):
    with (
        serve(content=b"evil") as server,
        pytest.raises(InputError, match=r"checksum sha256:\w+, and sha256:\w+ was expected"),
    ):
        fetch(server.url, tmp_path / "f", SHA)
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / "f.part").exists()


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (500, 3)])
def test_server_errors(tmp_path, status, tries):
    with serve(status=status) as server, pytest.raises(InputError, match=f"{status}.*put it at .*f"):
        fetch(server.url, tmp_path / "f", SHA)
    assert len(server.asked) == tries
    assert not (tmp_path / "f").exists()


def test_only_the_web_is_fetched_from(tmp_path):
    for url in ("file:///etc/passwd", "http://example.org/f", "ftp://example.org/f", "http://127.0.0.1.example.org/f"):
        with pytest.raises(InputError, match="is not an https address"):
            fetch(url, tmp_path / "f")
    with serve() as server, pytest.raises(InputError, match="sha256: or md5:"):
        fetch(server.url, tmp_path / "f", "crc:1")


def test_a_redirect_to_an_unsafe_address_is_refused(tmp_path):
    with (
        serve(location="http://example.org/f") as server,
        pytest.raises(InputError, match=r"example\.org/f is not an https address"),
    ):
        fetch(server.url, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_several_at_once_fetch_once(tmp_path):
    with serve() as server, ThreadPoolExecutor(4) as pool:
        paths = pool.map(lambda _: fetch(server.url, tmp_path / "f", SHA), range(4))
        assert [path.read_bytes() == CONTENT for path in paths] == [True] * 4
    assert len(server.asked) == 1
