"""Every integration gives the losses of a plain loop, in one process and in two; the examples run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from processes import run_pair

pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("lightning")
pytest.importorskip("skorch")

import pair
from integrations_runs import RUNS, by_accelerate
from loops import FEATURES, METHODS, SCHEDULED, assert_same, plain

ALL = {**METHODS, **FEATURES, **SCHEDULED}
QUIET = pytest.mark.filterwarnings(
    "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning", "ignore:.*treespec.*"
)


@QUIET
@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("framework", RUNS)
def test_the_losses_of_a_plain_loop(framework, method, tmp_path):
    expected_criterion, criterion = ALL[method](), ALL[method]()
    torch.manual_seed(5)
    expected, model = plain(expected_criterion)
    torch.manual_seed(5)
    losses, trained = RUNS[framework](criterion, tmp_path)
    assert len(losses) == len(expected) == 12
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert expected[-1] != pytest.approx(expected[0], abs=0.05)  # something was learned
    assert_same(criterion, expected_criterion)
    assert int(criterion.total) == 12
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@QUIET
@pytest.mark.parametrize("framework", [name for name in RUNS if name != "skorch"])
@pytest.mark.parametrize("method", ["logcomp", "scheduled"])
def test_gradient_accumulation_leaves_tables_and_clock_alone(framework, method, tmp_path):
    expected_criterion, criterion = ALL[method](), ALL[method]()
    expected, _ = plain(expected_criterion, accumulate=2)
    losses, _ = RUNS[framework](criterion, tmp_path, accumulate=2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert_same(criterion, expected_criterion)
    assert int(criterion.step) == int(criterion.total) == 12


@pytest.mark.parametrize("method", ["base", "logcomp", "mixcomp_over_epoch"])
def test_a_training_resumed_by_accelerate_is_the_uninterrupted_one(method, tmp_path):
    criteria = whole, first, again = [METHODS[method]() for _ in range(3)]
    expected, _ = by_accelerate(whole, tmp_path)
    by_accelerate(first, tmp_path, epochs=1, save=True)
    losses, _ = by_accelerate(again, tmp_path, epochs=2, load=True)
    assert losses == pytest.approx(expected[4:], rel=1e-6)
    assert_same(again, whole, rtol=1e-6, atol=1e-7)
    assert [int(criterion.total) for criterion in criteria] == [12] * 3


# Two processes
@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes hold in the end."""
    out = tmp_path_factory.mktemp("pair")
    run_pair(
        out, pair.train_all, out,
        LOCAL_WORLD_SIZE="2", GROUP_RANK="0", TORCHELASTIC_RUN_ID="pair", ACCELERATE_USE_CPU="true",
    )  # fmt: skip
    return out


@pytest.mark.slow
def test_two_processes_are_one(found):
    """One test, so that workers side by side do not each start two processes. Samples that fill up a last batch count once."""
    for library, method, case in pair.runs():
        expected = pair.tensors(*pair.plain(method, pair.as_one(library, case)))
        visits = expected["record.visits"]
        assert visits.max() == pair.EPOCHS
        assert case.drop_last or visits.min() == pair.EPOCHS
        for rank in range(2):
            held = torch.load(found / pair.stored(library, method, case, rank))
            assert held.keys() == expected.keys()
            for name, value in expected.items():
                where = f"{library} {method} {case} {rank} {name}"
                torch.testing.assert_close(held[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, w=where: f"{w}: {m}")


# Example scripts
EXAMPLES = Path(__file__).parents[2] / "examples" / "integrations"
NEEDS = {"lightning_module": "lightning", "transformers_trainer": "transformers", "skorch_classifier": "skorch"}


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*treespec.*", "ignore:.*does not have many workers", "ignore:.*number of training batches"
)
@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_finds_wrong_labels(script, capsys):
    pytest.importorskip(NEEDS.get(script.stem, "torch"))
    runpy.run_path(str(script), run_name="__main__")
    share = re.search(r"most suspect labels (\d+)% are wrong", capsys.readouterr().out)
    assert share is not None
    assert int(share[1]) >= 85  # 20 to 30 would be chance
