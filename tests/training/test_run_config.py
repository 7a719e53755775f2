"""What names a run, what fills in its open values, and what is refused."""

from __future__ import annotations

import hashlib
import json

import pytest

from compensate.errors import InputError
from compensate.training import PROTOCOL, Config, read_toml
from compensate.training.step import rate


def test_the_id_is_the_hash_of_canonical_json_and_protocol():
    config = Config(data="digits", noise="pair:0.2", method="logcomp", hyper={"lr": 1.0, "lam": 0.1})
    plain = {name: value for name, value in config.json.items() if value is not None}
    text = json.dumps([PROTOCOL, plain], sort_keys=True, separators=(",", ":"))
    assert config.id == hashlib.sha256(text.encode()).hexdigest()
    assert config.id != config.but(limit_test=10).id
    assert config.id == config.but(hyper={"lam": 0.1, "lr": 1.0}).id  # the order of names says nothing
    assert config.id == Config.of(json.loads(json.dumps(config.json))).id  # as stored, so read


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1}, {"noise": "pair:0.3"}, {"method": "base"}, {"hyper": {"lam": 0.2}}, {"hyper": {"lam": 0.1, "warmup": 0.0}},
        {"hyper": {}}, {"epochs": 3},
    ],
)  # fmt: skip
def test_every_part_of_a_run_is_in_its_id(change):
    config = Config(method="logcomp", hyper={"lam": 0.1})
    assert config.id != config.but(**change).id


def test_two_ways_to_write_one_run_have_one_id():
    assert Config(method="label-smoothing", noise="first_positive:0.1", clip=1).id == (
        Config(method="label_smoothing", noise="first-positive:0.1", clip=1.0).id
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": "five"}, "expected a whole number or nothing"),
        ({"noise": "pear:0.2"}, 'did you mean "pair"'),
        ({"schedule": "cosin"}, 'did you mean "cosine"'),
        ({"methd": "base"}, 'did you mean "method"'),
        ({"validation": 1.5}, "from 0 to 0.9"),
        ({"hyper": 3}, "a table of names and values"),
        ({"seed": True}, "a whole number"),
    ],
)
def test_mistakes_are_named(given, said):
    with pytest.raises(InputError, match=said):
        Config.of(given)


def test_a_run_of_something_else_than_plain_values_has_no_id():
    with pytest.raises(InputError, match="numbers, texts and lists"):
        _ = Config(hyper={"lam": object()}).id


def test_toml_files_are_read_and_mistakes_in_them_named(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('method = "logcomp"\nepochs = 3\n[hyper]\nlam = 0.1\n')
    assert Config.of(read_toml(file)) == Config(method="logcomp", epochs=3, hyper={"lam": 0.1})
    file.write_text("method = logcomp")
    with pytest.raises(InputError, match="not TOML"):
        read_toml(file)
    with pytest.raises(InputError, match="no file"):
        read_toml(tmp_path / "other.toml")


def test_schedules_meet_torch():
    import torch

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for step in range(50):
        assert rate(0.3, step, 50, schedule="cosine") == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
