"""`compensate review`: decisions are saved as they are made, nobody else gets in, and a killed server loses nothing."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from commands import exit_code, run
from review_pages import made_run

from compensate import Audit, audit
from compensate.auditing import server as review_module
from compensate.auditing.decisions import (
    CORRECTIONS,
    JOURNAL,
    Correction,
    Event,
    Journal,
    read_corrections,
    reviewing,
    run_decisions,
    write_corrections,
)
from compensate.auditing.server import LARGEST_BODY, Review, ReviewServer
from compensate.auditing.store import check_run_folder, write_run
from compensate.cli.review import audit_in_process
from compensate.errors import InputError


class Client:
    """What a tab of a browser does."""

    def __init__(self, address: str, tab: str = "tab") -> None:
        parts = urlsplit(address)
        self.host, self.port, self.tab = str(parts.hostname), int(parts.port or 0), tab
        self.origin = f"http://{self.host}:{self.port}"
        self.base = parts.path
        self.base = self.ask("GET", self.base)[2]["location"]

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
        finally:
            connection.close()

    def post(self, what: str, body: Any, **headers: str) -> tuple[int, bytes]:
        given = {"Content-Type": "application/json", "Origin": self.origin, **headers}
        return self.ask("POST", self.base + what, json.dumps(body).encode(), given)[:2]

    def decide(self, row: int, decision: str = "accept", label: str | None = None, time: int = 1) -> int:
        return self.post("decisions", {"tab": self.tab, "made": [[row, decision, label, time]]})[0]

    def made(self, after: int = 0) -> dict[int, str]:
        found = json.loads(self.ask("GET", f"{self.base}decisions?after={after}")[1])
        return {row: decision for row, decision, *_ in found["made"]}


# --- the journal ----------------------------------------------------------------------------------------------


def event(row: int, decision: str = "accept", time: int = 1, tab: str = "a", label: str = "dog") -> Event:
    return Event(Correction(row, "cat", decision, label if decision else "", "", ""), time, tab)


def test_the_latest_decision_of_a_row_holds_whenever_it_arrives(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.record([event(1, time=5), event(2, time=5)])
    journal.record([event(1, "reject", time=4, tab="late"), event(2, "", time=6)])
    assert [(c.index, c.decision) for c in journal.decisions] == [(1, "accept")]
    assert run_decisions(tmp_path) == journal.decisions == Journal(tmp_path).decisions
    journal.merge()
    assert [c.index for c in read_corrections(tmp_path / CORRECTIONS)] == [1]


def test_a_line_that_was_cut_off_is_left_out_and_the_next_one_is_whole(tmp_path: Path) -> None:
    Journal(tmp_path).record([event(1), event(2)])
    content = (tmp_path / JOURNAL).read_bytes()
    for cut in range(1, len(event(2).line())):
        (tmp_path / JOURNAL).write_bytes(content[:-cut])
        journal = Journal(tmp_path)
        assert [c.index for c in journal.decisions] == [1]
        journal.record([event(3)])
        assert [c.index for c in Journal(tmp_path).decisions] == [1, 3]


def test_what_could_not_be_written_is_not_found_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.record([event(1)])

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        journal.record([event(2)])
    monkeypatch.undo()
    assert [c.index for c in Journal(tmp_path).decisions] == [c.index for c in journal.decisions] == [1]


def test_a_line_that_is_no_decision_is_named(tmp_path: Path) -> None:
    for line in (b"{}", b"no json", b"[" * 2000, event(1).line()[:-1].replace(b'"accept"', b'"perhaps"')):
        (tmp_path / JOURNAL).write_bytes(event(1).line() + line + b"\n")
        with pytest.raises(InputError, match="line 2 is not a decision"):
            Journal(tmp_path)


def test_decisions_of_a_file_are_kept_under_those_of_the_journal(tmp_path: Path) -> None:
    write_corrections(tmp_path / CORRECTIONS, [Correction(1, "cat", "accept", "dog"), Correction(2, "cat", "skip", "")])
    journal = Journal(tmp_path)
    journal.record([event(2, "reject", label="cat")])
    journal.merge()
    assert [(c.index, c.decision) for c in read_corrections(tmp_path / CORRECTIONS)] == [(1, "accept"), (2, "reject")]


def test_one_process_reviews_at_a_time_and_nobody_replaces_the_run(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    with reviewing(folder):
        with pytest.raises(InputError, match="being reviewed"), reviewing(folder):
            pass
        with pytest.raises(InputError, match="being reviewed"):
            check_run_folder(folder)
    check_run_folder(folder)


# --- who gets in ----------------------------------------------------------------------------------------------


def test_the_page_is_the_file_of_the_run_byte_for_byte(serve: Callable[..., ReviewServer]) -> None:
    server = serve()
    client = Client(server.address)
    status, content, headers = client.ask("GET", client.base)
    assert status == 200
    assert content == (server.reviews[server.newest].folder / "report.html").read_bytes()
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/", "/report.html", "/wrong-token/", "/{token}", "/{token}/../{token}/", "/{token}/%2e%2e/", "/{token}//",
        "/{token}/{key}/../../../etc/passwd", "/{token}/{key}/..%2f..%2fetc%2fpasswd", "/{token}/{key}/report.html",
        "/{token}/{key}/audit/audit.json", "/{token}/{key}/decisions/", "/{token}/{other}/",
        "/{token}/{key}/again", "http://127.0.0.1/{token}/", "/{token}/{key}/\\..\\", "/{token}\u0301/",
    ],
)  # fmt: skip
def test_every_other_path_is_refused(serve: Callable[..., ReviewServer], path: str) -> None:
    server = serve()
    asked = path.format(token=server.token, key=server.newest, other="0" * 20)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as raw:
        raw.sendall(f"GET {asked} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
        answer = raw.recv(65536).decode()
    assert answer.split()[1] in ("404", "400")
    assert "root:" not in answer
    assert server.token not in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
def test_what_another_site_sends_is_refused(
    serve: Callable[..., ReviewServer], headers: dict[str, str], status: int
) -> None:
    client = Client(serve().address)
    body = {"tab": "a", "made": [[0, "accept", None, 1]]}
    assert client.post("decisions", body, **headers)[0] == status
    assert client.post("again", body, **headers)[0] == status
    assert client.made() == {}
    if "Content-Type" not in headers:
        assert client.ask("GET", client.base, headers=headers)[0] == 403


def test_a_decision_without_an_origin_or_a_token_is_refused(serve: Callable[..., ReviewServer]) -> None:
    server = serve()
    client = Client(server.address)
    body = json.dumps({"tab": "a", "made": [[0, "accept", None, 1]]}).encode()
    kind = {"Content-Type": "application/json"}
    assert client.ask("POST", client.base + "decisions", body, kind)[0] == 403
    for path in (f"/{server.newest}/decisions", f"/{'x' * len(server.token)}/{server.newest}/decisions"):
        assert client.ask("POST", path, body, {**kind, "Origin": client.origin})[0] == 404
    assert client.made() == {}


def test_large_bodies_are_refused_before_they_are_read(serve: Callable[..., ReviewServer]) -> None:
    client = Client(serve().address)
    head = f"POST {client.base}decisions HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nOrigin: {client.origin}\r\n"
    head += "Content-Type: application/json\r\n"
    for more, status in (
        (f"Content-Length: {10 << 20}\r\n\r\n", 413),
        (f"Content-Length: {LARGEST_BODY + 1}\r\n\r\n", 413),
        ("Content-Length: -1\r\n\r\n", 411),
        ("\r\n", 411),
        ("Transfer-Encoding: chunked\r\n\r\n", 411),
    ):
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
            raw.sendall((head + more).encode())
            assert int(raw.recv(65536).split()[1]) == status
    try:  # a client that does not look before it has sent everything
        status, _ = client.post("decisions", "x" * (10 << 20))
    except (ConnectionError, BrokenPipeError):
        status = 413
    assert status == 413
    assert client.made() == {}
    assert client.decide(0) == 200, "and the server goes on"


@pytest.mark.parametrize(
    "body",
    [
        None, [], {}, "text", {"tab": "a"}, {"tab": "a", "made": {}}, {"tab": "", "made": []},
        {"tab": "a/b", "made": []}, {"tab": "a", "made": [[0]]}, {"tab": "a", "made": [[99, "accept", None, 1]]},
        {"tab": "a", "made": [[-1, "accept", None, 1]]}, {"tab": "a", "made": [["0", "accept", None, 1]]},
        {"tab": "a", "made": [[True, "accept", None, 1]]}, {"tab": "a", "made": [[0, "perhaps", None, 1]]},
        {"tab": "a", "made": [[0, "other", "no class", 1]]}, {"tab": "a", "made": [[0, "other", None, 1]]},
        {"tab": "a", "made": [[0, "accept", None, "now"]]}, {"tab": "a", "made": [[0, ["accept"], None, 1]]},
        {"tab": "a", "made": [[1, "accept", None, 1], [0, "perhaps", None, 1]]},
    ],
)  # fmt: skip
def test_what_is_no_decision_is_refused_as_a_whole(serve: Callable[..., ReviewServer], body: Any) -> None:
    client = Client(serve().address)
    assert client.post("decisions", body)[0] == 400
    assert client.made() == {}


def test_tokens_are_random_and_long_and_the_server_listens_on_loopback_alone(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "twice")
    servers = [ReviewServer(Review(folder), port=0) for _ in range(3)]
    tokens = {server.token for server in servers}
    assert {server.server_address[0] for server in servers} == {"127.0.0.1"}
    for server in servers:
        server.server_close()
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 32


# --- what is saved --------------------------------------------------------------------------------------------


def test_decisions_are_what_the_page_would_export(serve: Callable[..., ReviewServer]) -> None:
    server = serve()
    client = Client(server.address)
    folder = server.reviews[server.newest].folder
    made = (0, "accept"), (1, "reject"), (2, "other", "cat"), (3, "skip")
    assert [client.decide(*one) for one in made] == [200] * 4
    assert client.decide(4) == client.decide(4, "", time=2) == 200, "and undone"
    deadline = time.monotonic() + 60
    while not (folder / CORRECTIONS).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    server.merge()
    found = [(c.index, c.given, c.decision, c.label, c.source) for c in read_corrections(folder / CORRECTIONS)]
    source = "sha256:" + "1" * 16
    assert found == [
        (0, "bird", "accept", "cat", source), (1, "cat", "reject", "cat", source), (2, "dog", "other", "cat", source),
        (3, "bird", "skip", "", source),
    ]  # fmt: skip


def test_tabs_see_what_others_decided(serve: Callable[..., ReviewServer]) -> None:
    address = serve().address
    one, two = Client(address, "one"), Client(address, "two")
    one.decide(5)
    version = json.loads(two.ask("GET", f"{two.base}decisions?after=0")[1])["version"]
    assert two.made() == {5: "accept"}
    two.decide(5, "reject", time=2)
    two.decide(6, "skip", time=2)
    assert one.made(version) == {5: "reject", 6: "skip"}
    assert one.made(version + 2) == {}


def review_process(folder: Path, port: int, *more: str) -> tuple[subprocess.Popen[str], str]:
    """The real command, and the address that it printed."""
    command = [sys.executable, "-m", "compensate", "review", str(folder), "--no-open", "--port", str(port), *more]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "400"}
    )
    assert process.stdout is not None
    return process, process.stdout.readline().rsplit(" ", 1)[1].strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_a_thousand_decisions_of_two_tabs_survive_a_killed_server(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", 1000)
    port = free_port()
    confirmed: dict[str, dict[int, str]] = {"one": {}, "two": {}}
    address: list[str] = []
    up = threading.Event()
    problems: list[str] = []

    def work(tab: str, rows: range) -> None:
        client: Client | None = None
        for row in rows:
            decision = ("accept", "reject", "skip")[row % 3]
            deadline = time.monotonic() + 60
            while tab and row not in confirmed[tab]:
                if time.monotonic() > deadline:
                    problems.append(f"row {row} of tab {tab} was never saved")
                    return
                up.wait(60)
                try:
                    if client is None or not client.base.startswith(urlsplit(address[-1]).path):
                        client = Client(address[-1], tab)
                    if client.decide(row, decision, time=row) == 200:
                        confirmed[tab][row] = decision
                except (OSError, http.client.HTTPException):  # killed while it answered
                    time.sleep(0.02)

    process, first = review_process(folder, port)
    address.append(first)
    up.set()
    parts = {"one": range(500), "two": range(500, 1000)}
    tabs = [threading.Thread(target=work, args=part, daemon=True) for part in parts.items()]
    for tab in tabs:
        tab.start()
    for kill_at in (150, 500, 800):
        deadline = time.monotonic() + 60
        while sum(map(len, confirmed.values())) < kill_at and not problems and time.monotonic() < deadline:
            time.sleep(0.01)
        up.clear()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        saved = {c.index for c in run_decisions(folder)}
        assert saved >= {row for rows in confirmed.values() for row in rows}, "what was confirmed is on disk"
        process, again = review_process(folder, port)
        address.append(again)
        up.set()
    for tab in tabs:
        tab.join(120)
    assert problems == []
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert "1,000 decisions" in said
    assert process.returncode == 0
    expected = {row: ("accept", "reject", "skip")[row % 3] for row in range(1000)}
    assert {c.index: c.decision for c in read_corrections(folder / CORRECTIONS)} == expected


@pytest.mark.slow
def test_the_server_ends_after_idleness_and_a_poll_does_not_keep_it_alive(tmp_path: Path) -> None:
    process, address = review_process(made_run(tmp_path / "run"), free_port(), "--idle", "0.03")
    client = Client(address)
    assert client.decide(3) == 200
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < 30:
        try:
            client.made()
        except (OSError, http.client.HTTPException):  # it may end in the middle of an answer, too
            break
        time.sleep(0.1)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "ended after idleness" in said
    assert [c.index for c in read_corrections(tmp_path / "run" / CORRECTIONS)] == [3]


def test_a_port_that_is_taken_is_named_and_the_usual_one_gives_way(
    serve: Callable[..., ReviewServer], tmp_path: Path
) -> None:
    server = serve()
    with pytest.raises(InputError, match=f"port {server.port}"):
        ReviewServer(Review(made_run(tmp_path / "other")), port=server.port)
    folders = (made_run(tmp_path / name) for name in "abcdef")
    folder = next(one for one in folders if _is_free(review_module.folder_port(one)))
    with ReviewServer(Review(folder)) as first, ReviewServer(Review(folder)) as second:
        assert first.port == review_module.folder_port(folder) != second.port


def _is_free(port: int) -> bool:
    """Whether no other program of this machine has the port."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@pytest.mark.parametrize(
    ("arguments", "said"), [(("--idle", "-1"), "idle"), (("--port", "70000"), "65535"), ((), "report.html")]
)
def test_wrong_arguments_of_review_are_named(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("review", tmp_path, *arguments) == 2
    assert said in capsys.readouterr().err


def test_a_page_that_is_none_is_refused(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run")
    page = (folder / "report.html").read_bytes()
    damaged = page.replace(b'"key":', b'"kye":'), page.replace(b'"given":[0', b'"given":[99')
    for content in (b"", b"<html>", *damaged, page[: page.index(b'"labels"')]):
        (folder / "report.html").write_bytes(content)
        with pytest.raises(InputError, match="not a review page"):
            Review(folder)


# --- the whole way --------------------------------------------------------------------------------------------


@pytest.fixture
def flipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pd.DataFrame, np.ndarray]:
    """A table with wrong labels as data.csv, and the true ones; runs/first is its audit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4)).round(3)
    true = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    given = np.where(rng.random(300) < 0.12, np.where(true == "no", "yes", "no"), true)
    frame = pd.DataFrame(x, columns=[*"abcd"]).assign(label=given)
    frame.to_csv("data.csv", index=False)
    run("audit", "data.csv", "--out", "runs/first")
    return frame, true


def decide_truly(folder: Path, true: np.ndarray, tab: str = "a", most: int = 1000) -> int:
    """Decides on the suspects of a run as somebody who knows."""
    review = Review(folder)
    made = []
    for row in list(review.rows)[:most]:
        right = review.labels[review.items["suggested"][review.rows[row]]] == true[row]
        made.append([row, "accept" if right else "reject", None, row + 1])
    return review.journal.record(review.events({"tab": tab, "made": made}))


def test_apply_needs_nothing_but_the_run(flipped: tuple[pd.DataFrame, np.ndarray]) -> None:
    frame, true = flipped
    folder = Path("runs/first")
    decide_truly(folder, true)
    run("apply", folder)
    fixed = pd.read_csv("data.fixed.csv")
    assert (fixed["label"] != true).sum() < (frame["label"] != true).sum() / 3
    run("audit", "data.csv", "--out", folder)
    assert run_decisions(folder), "the same data audited again keeps the decisions"
    frame.iloc[:200].to_csv("data.csv", index=False)
    with pytest.raises(InputError, match="decisions about other data"):
        write_run(audit("data.csv"), folder)


def test_an_audit_with_decisions_takes_them_as_right_and_says_what_changed(
    flipped: tuple[pd.DataFrame, np.ndarray],
) -> None:
    _, true = flipped
    decided = decide_truly(Path("runs/first"), true, most=20)
    assert f"with {decided} decided labels" in run("audit", "--with", "runs/first")
    (second,) = (p for p in Path("runs").iterdir() if p.name != "first")
    before, after = Audit.load("runs/first/audit"), Audit.load(second / "audit")
    rows = [c.index for c in run_decisions(Path("runs/first"))]
    assert (after.p_error[rows] == 0).all()
    assert after.names(after.given[rows]) == true[rows].tolist()
    assert not set(rows) & set(after.flagged["index"])
    since = after.config["since"]
    assert set(since["new"]) == set(after.flagged["index"]) - set(before.flagged["index"])
    assert set(since["gone"]) == set(before.flagged["index"]) - set(after.flagged["index"]) - set(rows)
    assert since["corrected"] + since["confirmed"] == decided
    assert run_decisions(second) == run_decisions(Path("runs/first")), "apply of the new run writes all of them"
    assert '"since":{"corrected"' in (second / "report.html").read_text()
    run("apply", second, "-o", "fixed.csv")
    assert (pd.read_csv("fixed.csv")["label"][rows] == true[rows]).all()


def test_decisions_about_another_file_are_refused_with_its_name(flipped: tuple[pd.DataFrame, np.ndarray]) -> None:
    frame, true = flipped
    decide_truly(Path("runs/first"), true, most=3)
    frame.assign(label="is " + frame["label"], extra=np.arange(len(frame)) % 5).to_csv("cells.csv", index=False)
    with pytest.raises(InputError, match=r"runs/first are about data\.csv, and none of their rows is in cells\.csv"):
        run("audit", "cells.csv", "--with", "runs/first")
    frame.iloc[::-1].to_csv("moved.csv", index=False)
    run("audit", "moved.csv", "--with", "runs/first", "--out", "runs/moved")


@pytest.mark.slow
def test_the_button_audits_again_and_the_new_page_is_served_beside_the_old_one(
    flipped: tuple[pd.DataFrame, np.ndarray], serve: Callable[..., ReviewServer]
) -> None:
    _, true = flipped
    server = serve(Path("runs/first"), again=audit_in_process)
    client = Client(server.address)
    assert client.post("again", {})[0] == 200
    assert client.post("again", {})[0] == 409, "one at a time"

    def waited() -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while server.audit["state"] == "running" and time.monotonic() < deadline:
            time.sleep(0.1)
        return server.audit

    assert waited()["state"] == "failed"
    assert "nothing was decided" in server.audit["said"]
    review = server.reviews[server.newest]
    for row, place in list(review.rows.items())[:10]:
        right = review.labels[review.items["suggested"][place]] == true[row]
        assert client.decide(row, "accept" if right else "reject", time=row) == 200
    assert client.post("again", {})[0] == 200
    assert waited()["state"] == "done", server.audit
    new = Client(server.address)
    assert new.base != client.base
    assert client.decide(next(iter(review.rows)), "skip", time=10**6) == 200, "old tabs go on with the old run"
    assert len(new.made()) == 10
