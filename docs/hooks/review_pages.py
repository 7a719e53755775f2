"""A hook of mkdocs: the review pages of the gallery become files of the site."""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from compensate.auditing.page import render_payload


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds ``gallery/SET.html`` for each ``results/gallery/pages/SET.json``."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / "results" / "gallery" / "pages").glob("*.json")):
        html = render_payload(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"gallery/{path.stem}.html", content=html))
    return files


def on_post_page(output: str, **_: object) -> str:
    """Names the dialog of the search for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
