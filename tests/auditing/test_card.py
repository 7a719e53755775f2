"""The card that describes the labels of a data set."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import exit_code, run

from compensate.auditing.decisions import Correction, Event, Journal
from compensate.auditing.result import Audit


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    rows = [f"{k % 2 * 5 + k % 7 / 10},{'ab'[(k % 2) ^ (k in (3, 8))]}" for k in range(60)]
    (tmp_path / "my_points.csv").write_text("\n".join(("size,kind", *rows)) + "\n")
    run("audit", tmp_path / "my_points.csv", "--label", "kind", "--out", tmp_path / "run")
    made = [Correction(3, "a", "accept", "b"), Correction(5, "b", "reject", "b"), Correction(7, "b", "drop", "")]
    Journal(tmp_path / "run").record(Event(c, 0, "t") for c in made)
    return tmp_path / "run"


def test_a_card_round_trips_through_the_form_of_the_hub(audited: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    readme = audited.parent / "README.md"
    run("card", audited, "--out", readme, "--reviewers", "2")
    card = hub.DatasetCard.load(readme)
    assert card.data.to_dict() == {
        "pretty_name": "my_points.csv",
        "size_categories": ["n<1K"],
        "tags": ["label-errors"],
    }
    again = hub.DatasetCard(str(card))
    assert (again.text, again.data.to_dict()) == (card.text, card.data.to_dict())
    rate = Audit.load(audited).noise_rate
    for said in (
        "60 labels of my\\_points.csv",
        f"about {rate.value:.1%}",
        "3 one at a time, by 2 people",
        "1 changed, 1 kept, 1 dropped",
    ):
        assert said in card.text


def test_a_readme_keeps_all_but_the_section(audited: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = audited.parent / "README.md"
    readme.write_bytes(b"---\r\nlicense: mit\r\n---\r\n# Mine\r\n")
    for _ in range(2):
        run("card", audited, "--out", readme)
        assert readme.read_bytes().count(b"\r\n") == readme.read_bytes().count(b"\n") > 9
    first = readme.read_text()
    readme.write_text(first)
    assert first.startswith("---\nlicense: mit\n---\n# Mine\n\n<!-- labels")
    readme.write_text(first + "## Mine too\n")
    run("card", audited, "--out", readme, "--reviewers", "1")
    assert readme.read_text() == first.replace("an unknown number of people", "1 person") + "## Mine too\n"
    readme.write_text(first.replace("<!-- end of labels -->", ""))
    assert exit_code("card", audited, "--out", readme) == 2
    assert "Remove the first" in " ".join(capsys.readouterr().err.split())
