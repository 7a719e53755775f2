"""A hook of mkdocs: the review pages of the gallery and the notebooks of the examples become pages of the site."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from compensate.auditing.page import render_payload


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds ``gallery/SET.html`` for ``results/gallery/pages/SET.json``, and a page and a download for ``examples/NAME.ipynb``."""
    root = Path(config.config_file_path).parent
    for path in sorted((root / "results" / "gallery" / "pages").glob("*.json")):
        html = render_payload(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"gallery/{path.stem}.html", content=html))
    for path in sorted((root / "examples").glob("*.ipynb")):
        text = notebook_page(json.loads(path.read_text(encoding="utf-8")), path.name)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    return files


def notebook_page(book: dict[str, Any], name: str) -> str:
    """A notebook with its stored outputs in Markdown."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("data", {"text/plain": output.get("text", "")})
            plain = f"<pre>{escape(''.join(shown['text/plain']))}</pre>"
            html = "".join(shown.get("text/html", plain)).replace('border="1" class="dataframe"', "")  # as other tables
            parts.append(f'<div class="output">{html}</div>')
    parts.insert(1, f"[Download {name}]({name})")
    return "\n\n".join(parts)


def on_post_page(output: str, **_: object) -> str:
    """Names the dialog of the search for screen readers."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
