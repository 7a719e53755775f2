"""Five training loops, the same batches: the same losses, tables and clocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("lightning")
pytest.importorskip("skorch")

from integrations_runs import RUNS
from loops import FEATURES, METHODS, SCHEDULED, assert_same, plain

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*treespec.*"),
]
ALL = {**METHODS, **FEATURES, **SCHEDULED}


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
    assert expected[-1] != pytest.approx(
        expected[0], abs=0.05
    )  # something was learned, so that equality means something
    assert_same(criterion, expected_criterion)
    assert int(criterion.total) == 12
    for one, other in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("framework", [name for name in RUNS if name != "skorch"])
@pytest.mark.parametrize("method", ["logcomp", "scheduled"])
def test_gradient_accumulation_leaves_tables_and_clock_alone(framework, method, tmp_path):
    expected_criterion, criterion = ALL[method](), ALL[method]()
    expected, _ = plain(expected_criterion, accumulate=2)
    losses, _ = RUNS[framework](criterion, tmp_path, accumulate=2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    assert_same(criterion, expected_criterion)
    assert int(criterion.step) == int(criterion.total) == 12
