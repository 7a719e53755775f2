"""The server of the review page: it saves decisions at once, from several tabs, without loss.

It serves the file ``report.html`` of the run as it is. The address contains a random token. The server listens on the loopback interface only,
and refuses requests of other sites (by the headers Host and Origin), large bodies and unknown paths; it never looks up a file by a path.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from compensate.auditing.decisions import BLIND, BULK, DECISIONS, Correction, Event, Journal
from compensate.auditing.page import read_payload
from compensate.auditing.sampling import Sample
from compensate.auditing.write_back import is_number
from compensate.data.labels import MAX_LABEL_LENGTH
from compensate.errors import InputError
from compensate.files import read_bytes

HOST = "127.0.0.1"
LARGEST_BODY = 1 << 20  # bytes of a request; the page sends much less
WAIT = 30.0  # seconds after which a silent connection is closed
MERGED_EVERY = 1.0  # seconds between two versions of corrections.csv; the journal is written at once
PORTS = (49152, 16384)  # the first dynamic port, and their number
_PATH = re.compile(r"/([\w-]+)/(?:([0-9a-f]{20})/(decisions|again)?)?", re.ASCII)
_TAB = re.compile(r"[\w-]{1,40}", re.ASCII)

Again = Callable[[Path, Callable[[str], None]], Path]
"""Audits a run again with its decisions: takes the folder of the run and a callback for progress, returns the folder of the new run."""


class Refused(Exception):
    """A refused request."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Review:
    """A run under review: its page, the rows on it, and its journal.

    Args:
        folder: of the run.
        page: the page that is served; by default that of the run.
        sample: the labels on the page, if a person looks at them for an estimate.
    """

    def __init__(self, folder: Path, page: bytes | None = None, sample: Sample | None = None) -> None:
        self.folder, self.sample = folder, sample
        self.page = read_bytes(folder / "report.html") if page is None else page
        found = read_payload(self.page)
        self.looks = found.get("looks")
        self.key, self.source, self.labels = found["key"], found["source"], found["labels"]
        self.classes = {self.labels[number] for number in found["classes"]}
        self.items = found["items"]
        self.rows = {row: place for place, row in enumerate(self.items["index"])}
        self.journal = Journal(folder)

    def events(self, body: Any) -> list[Event]:
        """The decisions in a request, or `Refused`."""
        try:
            tab, made = body["tab"], body["made"]
            if not (isinstance(made, list) and isinstance(tab, str) and _TAB.fullmatch(tab)):
                raise TypeError("tab and made must be a name and a list")
            now = time.time_ns() // 1_000_000
            return [Event(self._correction(*one[:3]), min(_whole(one[3]), now), tab, self._how(one)) for one in made]
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise Refused(HTTPStatus.BAD_REQUEST, f"not a list of decisions: {error}") from error

    def _how(self, one: Sequence[Any]) -> str:
        return BLIND if self.sample is not None else BULK if one[4:] == [True] else ""

    def _correction(self, row: Any, decision: Any, label: Any) -> Correction:
        """The correction that the page would export."""
        place = self.rows[_whole(row)]
        given, suggested = (self.labels[self.items[name][place]] for name in ("given", "suggested"))
        digest, part = (self.items[name][place] for name in ("digest", "part"))
        if decision == "other":
            fits = isinstance(label, str) and len(label) <= MAX_LABEL_LENGTH
            if not fits or not (label in self.classes if self.classes else is_number(label)):
                raise ValueError("the label is not one of the classes")
        elif decision not in ("", *DECISIONS):
            raise ValueError("unknown decision")
        else:
            label = {"accept": suggested, "reject": given}.get(decision, "")
        return Correction(_whole(row), given, decision, label, digest, self.source, part)

    def since(self, version: int) -> dict[str, Any]:
        """The decisions after a version, for the page."""
        reached = self.journal.version  # read first: an event may be sent twice, but none is missed
        events = self.journal.since(version, blind=self.sample is not None)
        made = [[e.made.index, e.made.decision, e.made.label, e.tab] for e in events]
        return {"version": reached, "made": made, "run": str(self.folder), "looks": self.looked()}

    def looked(self) -> dict[str, Any] | None:
        """The estimate from the labels that were looked at so far."""
        return None if self.sample is None else self.sample.looked(self.journal.answers).stored()


class ReviewServer(ThreadingHTTPServer):
    """Serves the page of a run, and of runs made from it.

    Args:
        review: the first run.
        port: by default one that is derived from the path of the folder, by which an open page finds a restarted server, or any free one.
        idle: seconds without a request for a page or a decision after which the server ends; None for never.
        again: audits a run again with its decisions; None if that is not possible.
        token: of the address; random by default.
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
        try:
            super().__init__((HOST, folder_port(review.folder) if port is None else port), _Handler)
        except OSError as error:
            if port is not None:
                raise InputError(
                    f"port {port} cannot be listened on ({error.strerror or error}). Choose another with --port, or leave it out."
                ) from error
            super().__init__((HOST, 0), _Handler)
        self.reviews = {review.key: review}
        self.newest = review.key
        self.token, self.idle, self.again = token or secrets.token_urlsafe(24), idle, again
        self.audit: dict[str, Any] = {"state": "ready" if again is not None else "none"}
        self.used = self.merged = time.monotonic()
        self._starting = threading.Lock()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The address of the page; it grants access."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def service_actions(self) -> None:
        """Updates corrections.csv and ends an idle server; called twice a second."""
        if time.monotonic() - self.merged > MERGED_EVERY:
            self.merge()
        if self.idle is not None and self.audit["state"] != "running" and time.monotonic() - self.used > self.idle:
            threading.Thread(target=self.shutdown, daemon=True).start()

    def merge(self) -> None:
        """Updates every corrections.csv."""
        for review in tuple(self.reviews.values()):
            review.journal.merge()
        self.merged = time.monotonic()

    def start_again(self, review: Review) -> None:
        """Audits a run again in the background."""
        again = self.again
        with self._starting:
            if again is None:
                raise Refused(HTTPStatus.NOT_FOUND, "this server does not audit")
            if self.audit["state"] == "running":
                raise Refused(HTTPStatus.CONFLICT, "an audit is running already")
            self.audit = {"state": "running", "said": "starting", "of": review.key}

        def report(text: str) -> None:
            self.audit = {**self.audit, "said": text}

        def run() -> None:
            try:
                review.journal.merge()
                found = Review(again(review.folder, report))
                self.reviews[found.key] = found
                self.newest = found.key
                self.audit = {"state": "done", "of": review.key, "key": found.key}
            except Exception as error:  # shown on the page
                self.audit = {"state": "failed", "said": str(error)[:1000], "of": review.key}
            self.used = time.monotonic()

        threading.Thread(target=run, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores browsers that disconnect."""


def folder_port(folder: Path) -> int:
    """A port that is derived from the path of a folder."""
    digest = hashlib.sha256(str(folder.absolute()).encode("utf-8", "surrogatepass")).digest()
    return PORTS[0] + int.from_bytes(digest[:4], "big") % PORTS[1]


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = WAIT

    def log_message(self, *_: Any) -> None:
        """Logs nothing, as addresses hold the token."""

    def do_GET(self) -> None:
        self.close_connection = True  # no thread waits for a closed tab
        status, location = HTTPStatus.OK, {}
        try:
            kind, content = self._reply()
        except Refused as refused:
            status, kind, content = refused.status, "text/plain; charset=utf-8", str(refused).encode()
            if status is HTTPStatus.FOUND:
                location, content = {"Location": str(refused)}, b""
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
            "Content-Security-Policy": "frame-ancestors 'none'", "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin", **location, "Connection": "close",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def _reply(self) -> tuple[str, bytes]:
        """The type and the content of the answer; refuses requests of other sites or under another host name."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0] not in (f"{HOST}:{self.server.port}", f"localhost:{self.server.port}"):
            raise Refused(HTTPStatus.FORBIDDEN, "this is not the host that was asked for")
        origins = self.headers.get_all("Origin") or []
        foreign = any(origin != f"http://{hosts[0]}" for origin in origins) or (self.command == "POST" and not origins)
        if foreign or self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise Refused(HTTPStatus.FORBIDDEN, "the request comes from another site")
        address, _, query = self.path.partition("?")
        path = _PATH.fullmatch(address)
        if path is None or not secrets.compare_digest(path[1], self.server.token):
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here; the address must have its token")
        if path[2] is None:
            raise Refused(HTTPStatus.FOUND, f"/{self.server.token}/{self.server.newest}/")
        review, what, posted = self.server.reviews.get(path[2]), path[3] or "", self.command == "POST"
        if posted:
            length = self.headers.get("Content-Length", "")
            if "Transfer-Encoding" in self.headers or not re.fullmatch("[0-9]{1,12}", length, re.ASCII):
                raise Refused(HTTPStatus.LENGTH_REQUIRED, "the length of the body is missing")
            if int(length) > LARGEST_BODY:
                raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {LARGEST_BODY:,} bytes")
            if self.headers.get_content_type() != "application/json":
                raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
            try:
                body = json.loads(self.rfile.read(int(length)))
            except (ValueError, RecursionError) as error:
                raise Refused(HTTPStatus.BAD_REQUEST, "the body is not JSON") from error
        if review is None or what == ("" if posted else "again"):
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        if posted or not what:
            self.server.used = time.monotonic()
        if not what:
            return "text/html; charset=utf-8", review.page
        if what == "again":
            self.server.start_again(review)
            reply: dict[str, Any] = {"audit": self.server.audit}
        elif posted:
            events = review.events(body)
            try:
                reply = {"version": review.journal.record(events) if events else review.journal.version}
            except InputError as error:  # for example a full disk
                raise Refused(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from error
        else:
            after = re.fullmatch(r"after=([0-9]{1,12})", query, re.ASCII)
            reply = {**review.since(int(after[1]) if after else 0), "audit": self.server.audit}
        # A lone surrogate has no UTF-8; as an escape it survives.
        return "application/json", json.dumps(reply, ensure_ascii=True).encode()


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a row or a time must be a whole number")
    return value
