"""The review page served on this machine: decisions are saved as they are made, by several tabs, without loss.

The page is the file ``report.html`` of the run, byte for byte; it finds out by itself that it is served. Whoever wants to read or decide needs
the address with its random token. The server listens on the loopback interface alone, and refuses what other sites send through a browser
(by the headers Host and Origin), large bodies, and every path but its own few: no file is ever looked up by a path.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from compensate.auditing.decisions import DECISIONS, Correction, Event, Journal, now
from compensate.auditing.page.payload import read_payload
from compensate.auditing.write_back import is_number
from compensate.data.labels import MAX_LABEL_LENGTH
from compensate.errors import InputError
from compensate.files import read_bytes

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 20
"""Bytes of a request; the page sends far less at once."""

WAIT = 30.0
"""Seconds after which a connection that says nothing is closed."""

MERGED_EVERY = 1.0
"""Seconds between two versions of corrections.csv; the journal is written at once."""

PORTS = (49152, 16384)
"""The first of the ports that are free for anybody, and their number."""

_PATH = re.compile(r"/([\w-]+)/(?:([0-9a-f]{20})/(decisions|again)?)?", re.ASCII)
_TAB = re.compile(r"[\w-]{1,40}", re.ASCII)

Again = Callable[[Path, Callable[[str], None]], Path]
"""Audits a run again with its decisions; is given the run's folder and whom to tell how far it is, and returns the new run's folder."""


class Refused(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Review:
    """A run under review: its page, the rows on it, and its journal.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = read_bytes(folder / "report.html")
        found = read_payload(self.page)
        self.key, self.source, self.labels = found["key"], found["source"], found["labels"]
        self.classes = {self.labels[number] for number in found["classes"]}
        items = found["items"]
        self.rows = {row: place for place, row in enumerate(items["index"])}
        self.given, self.suggested = items["given"], items["suggested"]
        self.digests, self.parts = items["digest"], items["part"]
        self.journal = Journal(folder)

    def events(self, body: Any) -> list[Event]:
        """The decisions in a request, or `Refused`."""
        try:
            tab, made = body["tab"], body["made"]
            if not (isinstance(made, list) and isinstance(tab, str) and _TAB.fullmatch(tab)):
                raise TypeError("tab and made are no name and list")
            latest = now()
            return [Event(self._correction(*one[:3]), min(_whole(one[3]), latest), tab) for one in made]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"no list of decisions: {error}") from error

    def _correction(self, row: Any, decision: Any, label: Any) -> Correction:
        """What the page would export for such a decision."""
        place = self.rows[_whole(row)]
        given, suggested = self.labels[self.given[place]], self.labels[self.suggested[place]]
        if decision == "other":
            fits = isinstance(label, str) and len(label) <= MAX_LABEL_LENGTH
            if not fits or not (label in self.classes if self.classes else is_number(label)):
                raise ValueError("the label is none of the classes")
        elif decision not in ("", *DECISIONS):
            raise ValueError("unknown decision")
        else:
            label = {"accept": suggested, "reject": given}.get(decision, "")
        return Correction(_whole(row), given, decision, label, self.digests[place], self.source, self.parts[place])

    def since(self, version: int) -> dict[str, Any]:
        """What the page has to know of decisions after a version."""
        reached = self.journal.version  # before the events are looked up: one too many is told twice, none is missed
        made = [[e.made.index, e.made.decision, e.made.label, e.tab] for e in self.journal.since(version)]
        if version <= 0:  # the first question: also those that were there before the journal
            told = {row for row, *_ in made}
            held = [c for c in self.journal.decisions if c.index not in told]
            made += [[c.index, c.decision, c.label, ""] for c in held]
        return {"version": reached, "made": made, "run": str(self.folder)}


class ReviewServer(ThreadingHTTPServer):
    """Serves the page of a run, and of runs that are made from it.

    Args:
        review: the first run.
        port: on which to listen; by default one that belongs to the folder if it is free, so that a page that was open finds the
            server again, or else any.
        idle: seconds without a decision or a page after which the server ends; none for never.
        again: what audits a run again with its decisions; none if that cannot be done.
        token: of the address; by default a random one.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        review: Review,
        *,
        port: int | None = None,
        idle: float | None = None,
        again: Again | None = None,
        token: str | None = None,
    ) -> None:
        self._bind(review.folder, port)
        self.reviews = {review.key: review}
        self.newest = review.key
        self.token = token or secrets.token_urlsafe(24)
        self.idle, self.again = idle, again
        self.audit: dict[str, Any] = {"state": "ready" if again is not None else "none"}
        self.used = self.merged = time.monotonic()
        self._starting = threading.Lock()

    def _bind(self, folder: Path, port: int | None) -> None:
        tried = [port] if port is not None else [usual_port(folder), 0]
        for place, one in enumerate(tried):
            try:
                super().__init__((HOST, one), _Handler)
                return
            except OSError as error:
                if place + 1 == len(tried):
                    raise InputError(
                        f"port {one} cannot be listened on ({error.strerror or error}). Choose another with --port, or leave it out."
                    ) from error

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Where the page is; who has it may read and decide."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """What browsers call this server."""
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    def service_actions(self) -> None:
        """Called twice a second: corrections.csv follows the journal, and the server ends after idleness."""
        if time.monotonic() - self.merged > MERGED_EVERY:
            self.merge()
        if self.idle is not None and self.audit["state"] != "running" and time.monotonic() - self.used > self.idle:
            threading.Thread(target=self.shutdown, daemon=True).start()

    def merge(self) -> None:
        """Brings every corrections.csv up to date."""
        for review in tuple(self.reviews.values()):
            review.journal.merge()
        self.merged = time.monotonic()

    def start_again(self, review: Review) -> None:
        """Audits a run again in the background."""
        with self._starting:
            if self.again is None:
                raise Refused(HTTPStatus.NOT_FOUND, "this server does not audit")
            if self.audit["state"] == "running":
                raise Refused(HTTPStatus.CONFLICT, "an audit is running already")
            self.audit = {"state": "running", "said": "starting", "of": review.key}
        threading.Thread(target=self._audit, args=(review, self.again), daemon=True).start()

    def _audit(self, review: Review, again: Again) -> None:
        def told(said: str) -> None:
            self.audit = {**self.audit, "said": said}

        try:
            review.journal.merge()
            found = Review(again(review.folder, told))
            self.reviews[found.key] = found
            self.newest = found.key
            self.audit = {"state": "done", "of": review.key, "key": found.key}
        except Exception as error:  # said on the page, whatever it was
            self.audit = {"state": "failed", "said": str(error)[:1000], "of": review.key}
        self.used = time.monotonic()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


def usual_port(folder: Path) -> int:
    """A port that belongs to a folder.

    >>> usual_port(Path("a")) == usual_port(Path("a")) >= 49152
    True
    """
    digest = hashlib.sha256(str(folder.absolute()).encode("utf-8", "surrogatepass")).digest()
    first, number = PORTS
    return first + int.from_bytes(digest[:4], "big") % number


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = WAIT

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, *_: Any) -> None:
        """Nothing: addresses hold the token."""

    def _answer(self, act: Callable[[Review | None, str], tuple[HTTPStatus, str, bytes]]) -> None:
        self.close_connection = True  # a request each: no thread waits for a tab that is gone
        location = ""
        try:
            path = _PATH.fullmatch(self.path.partition("?")[0])
            self._check()
            if path is None or not secrets.compare_digest(path[1], self.server.token):
                raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here; the address must have its token")
            if path[2] is None:
                location = f"/{self.server.token}/{self.server.newest}/"
                raise Refused(HTTPStatus.FOUND, "")
            status, kind, content = act(self.server.reviews.get(path[2]), path[3] or "")
        except Refused as refused:
            status, kind, content = refused.status, "text/plain; charset=utf-8", str(refused).encode()
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
            "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin", **({"Location": location} if location else {}),
            "Connection": "close",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _check(self) -> None:
        """Refuses what another site sends through a browser, and what reaches this server under another name."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            raise Refused(HTTPStatus.FORBIDDEN, "this is not the host that was asked for")
        origins = self.headers.get_all("Origin") or []
        if any(origin != f"http://{hosts[0]}" for origin in origins) or (self.command == "POST" and not origins):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another site")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another site")

    def _get(self, review: Review | None, what: str) -> tuple[HTTPStatus, str, bytes]:
        if review is None or what == "again":
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        if not what:
            self.server.used = time.monotonic()
            return HTTPStatus.OK, "text/html; charset=utf-8", review.page
        after = re.fullmatch(r"after=([0-9]{1,12})", self.path.partition("?")[2], re.ASCII)
        return _json({**review.since(int(after[1]) if after else 0), "audit": self.server.audit})

    def _post(self, review: Review | None, what: str) -> tuple[HTTPStatus, str, bytes]:
        body = self._body()
        if review is None or not what:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        self.server.used = time.monotonic()
        if what == "again":
            self.server.start_again(review)
            return _json({"audit": self.server.audit})
        events = review.events(body)
        try:
            return _json({"version": review.journal.record(events) if events else review.journal.version})
        except InputError as error:  # a disk that is full, or gone
            raise Refused(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error

    def _body(self) -> Any:
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not re.fullmatch("[0-9]{1,12}", length, re.ASCII):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the body is not said")
        if int(length) > LARGEST_BODY:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {LARGEST_BODY:,} bytes")
        if self.headers.get_content_type() != "application/json":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        content = self.rfile.read(int(length))
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is no JSON") from error


def _json(value: Any) -> tuple[HTTPStatus, str, bytes]:
    # Half of a surrogate pair has no UTF-8; as an escape it is what it was in the page.
    return HTTPStatus.OK, "application/json", json.dumps(value, ensure_ascii=True).encode()


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a row or a time is no whole number")
    return value
