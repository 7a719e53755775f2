"""The trainer of Hugging Face: the index that it would drop, checkpoints, evaluation, and what is found out."""

from __future__ import annotations

import shutil

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("lightning")
pytest.importorskip("skorch")

import transformers
from integrations_runs import hf_trainer, rows
from loops import BATCH, FEATURES, METHODS, RATE, C, N, assert_same, bert, plain, words

from compensate import InputError, methods
from compensate.integrations.transformers import IndexCollator


def logcomp(n=N):
    return methods.logcomp(num_samples=n, num_classes=C)


# coming back
@pytest.mark.slow
@pytest.mark.parametrize("method", ["base", "logcomp", "mixcomp_over_epoch"])
def test_a_resumed_training_is_the_uninterrupted_one(method, tmp_path):
    """From the middle of an epoch, from its last step before it is ended, and from its end."""
    arguments = {"save_strategy": "steps", "save_steps": 2}
    whole = hf_trainer(METHODS[method](), tmp_path, arguments=arguments)
    whole.train()
    assert whole.losses == pytest.approx(plain(METHODS[method]())[0], rel=1e-4)
    for step in (2, 4, 6):
        again = hf_trainer(METHODS[method](), tmp_path / "again", arguments={})
        again.train(str(tmp_path / f"checkpoint-{step}"))
        assert again.losses == pytest.approx(whole.losses[step:], rel=1e-6)
        assert_same(again.criterion, whole.criterion, rtol=1e-6, atol=1e-7)
        assert (int(again.criterion.epoch), int(again.criterion.step), int(again.criterion.total)) == (3, 12, 12)


def test_a_checkpoint_of_another_trainer_or_criterion(tmp_path):
    hf_trainer(logcomp(), tmp_path, epochs=1, arguments={"save_strategy": "epoch"}).train()
    with pytest.raises(InputError, match="that of this criterion has"):
        hf_trainer(logcomp(N + 1), tmp_path).train(resume_from_checkpoint=True)
    shutil.rmtree(tmp_path / "checkpoint-4" / "compensate")
    with pytest.raises(InputError, match="has no folder compensate"):
        hf_trainer(logcomp(), tmp_path).train(resume_from_checkpoint=True)


# the index
def test_the_trainer_drops_no_index_and_shuffling_carries_it(tmp_path):
    """By default the trainer removes what the model does not take, and shuffles."""
    criterion = logcomp()
    arguments = {"train_sampling_strategy": "random", "remove_unused_columns": True}
    hf_trainer(criterion, tmp_path, data=rows().shuffle(seed=1), arguments=arguments).train()
    assert criterion.record.visits.tolist() == [3.0] * N
    assert criterion.index_check.given.tolist() == words()[1].tolist()


@pytest.mark.parametrize("keep", ["removed", "formatted"])
def test_the_index_is_dropped_before(keep, tmp_path):
    data = rows()
    data = (
        data.remove_columns("index")
        if keep == "removed"
        else data.with_format("torch", columns=["input_ids", "labels"])
    )
    with pytest.raises(InputError, match=r'the training batch has no "index".*add_index'):
        hf_trainer(logcomp(), tmp_path, data=data).train()
    made = hf_trainer(methods.label_smoothing(lam=0.1), tmp_path, data=data, epochs=1)
    made.train()  # keeps nothing per sample, so needs no index
    assert len(made.losses) == 4


def test_more_samples_than_rows_and_missing_labels(tmp_path):
    with pytest.raises(InputError, match=r"outside 0\.\.9"):
        hf_trainer(logcomp(10), tmp_path).train()
    with pytest.raises(InputError, match='no "labels"'):
        hf_trainer(logcomp(), tmp_path, data=rows().remove_columns("labels")).train()


def test_the_collator_around_one_that_pads():
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"[PAD]": 0}, "[PAD]"))
    tokens = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    collate = IndexCollator(transformers.DataCollatorWithPadding(tokens))
    batch = collate([{"input_ids": [3, 4, 5], "label": 1, "index": 9}, {"input_ids": [3], "label": 0, "index": 2}])
    assert batch["index"].tolist() == [9, 2]
    assert batch["input_ids"].tolist() == [[3, 4, 5], [3, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert "index" not in collate([{"input_ids": [3], "label": 0}])
    with pytest.raises(InputError, match='1 of 2 samples have no "index"'):
        collate([{"input_ids": [3], "label": 0}, {"input_ids": [3], "label": 0, "index": 1}])


# the criterion
def test_two_losses_at_once(tmp_path):
    with pytest.raises(InputError, match=r"label_smoothing_factor is 0\.1"):
        hf_trainer(logcomp(), tmp_path, arguments={"label_smoothing_factor": 0.1})
    with pytest.raises(InputError, match="compute_loss_func and criterion"):
        hf_trainer(logcomp(), tmp_path, compute_loss_func=lambda *a, **k: 0)
    with pytest.raises(InputError, match="CrossEntropyLoss; expected one of compensate"):
        hf_trainer(torch.nn.CrossEntropyLoss(), tmp_path)


def test_meta_steps_are_taken(tmp_path):
    """Against the same meta steps of a model that was cut by hand."""
    from loops import Net, loader

    from compensate import meta_step

    ids, target = words()
    expected, criterion = (methods.meta_logit(num_samples=N, num_classes=C) for _ in range(2))
    net = Net()
    net.inner.set_attn_implementation("eager")  # others have no second derivative
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE)
    expected.start(4)
    for x, y, index in loader():
        meta_step(expected, net, (x, y, index), (ids[:5], target[:5]), lr=RATE)
        optimizer.zero_grad()
        expected.evaluate(net, x, y, index).loss.backward()
        optimizer.step()
    expected.end_epoch()
    model = bert()
    model.set_attn_implementation("eager")
    clean = [({"input_ids": ids[:5], "attention_mask": (ids[:5] != 0).long()}, target[:5])]
    hf_trainer(criterion, tmp_path, model=model, clean=clean, epochs=1).train()
    assert float(next(criterion.tables()).weight.detach().abs().max()) > 0
    assert_same(criterion, expected, rtol=1e-3)


def test_a_model_that_is_no_classifier(tmp_path):
    model = transformers.BertModel(bert().config)
    with pytest.raises(InputError, match="without logits"):
        hf_trainer(logcomp(), tmp_path, model=model).train()


def test_a_stream_has_passes_though_it_has_no_length(tmp_path):
    criterion = logcomp()
    hf_trainer(criterion, tmp_path, data=rows().to_iterable_dataset(), arguments={"max_steps": 10}).train()
    assert (int(criterion.total), int(criterion.step), int(criterion.epoch)) == (10, 10, 3)
    assert criterion.record.visits.sum() == 2 * N + 2 * BATCH


# evaluation
@pytest.mark.parametrize("method", ["logcomp", "mixcomp_features"])
@pytest.mark.parametrize("numbered", [True, False])
def test_evaluation_gives_the_plain_loss_and_moves_nothing(method, numbered, tmp_path):
    build = {**METHODS, **FEATURES}[method]
    expected, criterion = build(), build()
    data = rows() if numbered else rows().remove_columns("index")
    made = hf_trainer(
        criterion, tmp_path, eval_dataset=data, arguments={"eval_strategy": "epoch", "logging_strategy": "epoch"}
    )
    made.train()
    losses, net = plain(expected)
    assert made.losses == pytest.approx(losses, rel=1e-4)
    assert_same(criterion, expected)
    ids, target = words()
    last = [entry["eval_loss"] for entry in made.state.log_history if "eval_loss" in entry][-1]
    assert last == pytest.approx(float(torch.nn.functional.cross_entropy(net(ids), target).detach()), rel=1e-3)
    assert made.predict(data).predictions.shape == (N, C)
