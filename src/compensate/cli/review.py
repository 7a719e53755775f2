"""`compensate review`: serve the review page and save decisions as they are made."""

from __future__ import annotations

import multiprocessing
import signal
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

from compensate.auditing.api import audit
from compensate.auditing.decisions import reviewing
from compensate.auditing.page import page_of, render_page
from compensate.auditing.request import AuditRequest, ReviewedRun, reopen, rewrite_with_looks, run_audit
from compensate.auditing.result import Audit
from compensate.auditing.sampling import LOOKS, Sample, describe_looks
from compensate.auditing.server import Review, ReviewServer
from compensate.cli import options as o
from compensate.cli.audit import describe_workload
from compensate.cli.terminal import console, plural, quoted, say
from compensate.errors import InputError, check


def review(
    run: Annotated[Path, o.argument("Run folder that `compensate audit` wrote.")],
    port: Annotated[int | None, o.option("Port to listen on [default: any that is free].")] = None,
    idle: Annotated[float, typer.Option(help="Idle minutes after which the server ends; 0 for never.", min=0)] = 30,
    no_open: Annotated[bool, o.option("Print the address, and open no browser.", "--no-open")] = False,
    estimate: Annotated[bool, o.option("Learn how many labels are wrong from a random sample.", "--estimate")] = False,
    looks: Annotated[int, typer.Option(help="Labels to look at with --estimate: 60, 100 or 200.")] = LOOKS[1],
) -> None:
    """Open the review page, and save decisions as they are made.

    **Example:** `compensate review runs/reviews-3f2a`, then `compensate apply runs/reviews-3f2a`

    The page is served on this machine alone, under an address with a random token. Ctrl-C ends it. With --estimate, the page shows random
    labels without the given one; after 60, 100 and 200 answers it states the share of wrong labels. Ctrl-C writes it into the run.
    """
    check(port is None or 0 < port < 65536, "a number from 1 to 65535, such as 8000", **{"--port": port})
    check(looks in LOOKS, "60, 100 or 200", **{"--looks": looks})
    o.check_path(run)
    if not (run / "report.html").is_file():
        raise InputError(f"{run} holds no report.html; expected the folder of a run that `compensate audit` wrote.")
    with reviewing(run):
        found, opened = open_sample(run, looks) if estimate else (None, Review(run))
        server = ReviewServer(opened, port=port, idle=60 * idle or None, again=None if estimate else audit_in_process)
        say(f"reviewing {run}: {server.address}", wrap=False)
        if opened.looks is not None:
            say(describe_looks(opened.looks))
        console.print("decisions are saved as they are made; Ctrl-C ends", style="dim")
        if not no_open:
            webbrowser.open(server.address)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for background jobs
        try:
            server.serve_forever()
            console.print("ended after idleness")
        except KeyboardInterrupt:
            console.print("ended")
        finally:
            server.server_close()
            server.merge()
            for each in server.reviews.values():
                made = plural(len(each.journal.decisions), "decision")
                say(f"{made}:  compensate apply {quoted(each.folder)}", wrap=False)
    if found is not None:
        looked = opened.looked() or {}
        say(describe_looks(looked))
        if looked["wrong"] is not None:
            found = rewrite_with_looks(found, run)
            say(f"the probabilities of error follow: {found.flag_summary}")
            say(describe_workload(found))


def open_sample(run: Path, looks: int) -> tuple[Audit, Review]:
    """The audit of a run with its samples, and the review of a random sample of its labels: the stored one, or a new one."""
    found = reopen(run)
    sample = Sample.load(run)
    if sample is None or sample.sizes.sum() != len(found):
        sample = found.sample()
        sample.save(run)
    places = pd.Index(found.index).get_indexer(pd.Index(sample.index[:looks]))
    page = render_page(page_of(found, places)).encode()
    return found, Review(run, page, sample)


def audit_in_process(run: Path, report: Callable[[str], None]) -> Path:
    """Audits a run again with its decisions in a separate process; the server stays responsive."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_again, args=(run, there), daemon=True)
    process.start()
    there.close()
    try:
        while True:
            kind, said = here.recv()
            if kind == "done":
                return Path(said)
            if kind == "failed":
                raise InputError(said)
            report(said)
    except EOFError:
        raise InputError("the process of the audit was killed") from None
    finally:
        process.join(10)


def _again(run: Path, pipe: Any) -> None:
    """Runs in the other process."""

    def progress(stage: str, done: int, total: int) -> None:
        pipe.send(("told", f"{stage} {done:,} of {total:,}"))

    try:
        reviewed = ReviewedRun.load(run)
        request = AuditRequest().with_defaults(reviewed.request)
        _, folder = run_audit(request, partial(audit, progress=progress, resume=True), reviewed=reviewed)
        pipe.send(("done", str(folder)))
    except Exception as error:  # the page shows every error
        pipe.send(("failed", str(error) or type(error).__name__))
