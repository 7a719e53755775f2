"""The trainer of Hugging Face: the index that it would drop, checkpoints, evaluation, and what is found out."""

from __future__ import annotations

import shutil

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("datasets")
pytest.importorskip("lightning")
pytest.importorskip("skorch")

import datasets
import transformers
from integrations_runs import hf_trainer, rows
from loops import BATCH, FEATURES, METHODS, RATE, C, N, Net, assert_same, bert, loader, plain, words

from compensate import InputError, meta_step, methods
from compensate.integrations.transformers import IndexCollator, add_index


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
    columns = ["input_ids", "labels"]
    data = data.remove_columns("index") if keep == "removed" else data.with_format("torch", columns=columns)
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


# labels of tokens: padding, pieces of words, and a row for a sentence or for each token
LENGTHS = [3, 5, 4, 6, 3, 5, 4, 6, 3, 5, 4, 6]


def sentences():
    """Token numbers with a tag each; the first and last, and every second piece of a word, have none."""
    torch.manual_seed(0)
    ids = [torch.randint(5, 20, (n,)).tolist() for n in LENGTHS]
    tags = [[-100, *(-100 if t % 4 == 3 else t % C for t in row[1:-1]), -100] for row in ids]
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": tags})


def pad(samples):
    longest = max(len(s["input_ids"]) for s in samples)

    def row(values, fill):
        return values + [fill] * (longest - len(values))

    return {
        "input_ids": torch.tensor([row(s["input_ids"], 0) for s in samples]),
        "attention_mask": torch.tensor([row([1] * len(s["input_ids"]), 0) for s in samples]),
        "labels": torch.tensor([row(s["labels"], -100) for s in samples]),
    }


def tagger():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=C,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForTokenClassification(config)


def by_hand(criterion, data, epochs=2):
    """The same training in a plain loop."""
    model, collate = tagger(), IndexCollator(pad)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(epochs):
        for first in range(0, len(LENGTHS), BATCH):
            batch = collate([data[k] for k in range(first, first + BATCH)])
            labels, index = batch.pop("labels"), batch.pop("index")
            optimizer.zero_grad()
            criterion(model(**batch).logits.movedim(-1, 1), labels, index).backward()
            optimizer.step()
        criterion.end_epoch()
    return model


@pytest.mark.parametrize("places", [None, "labels"])
@pytest.mark.parametrize("name", ["logcomp", "mixcomp", "elr"])
def test_a_tagger_trains_with_a_row_for_each_sentence_or_token(name, places, tmp_path):
    data = add_index(sentences(), places=places)
    sizes = {"num_samples": len(LENGTHS) if places is None else sum(LENGTHS)} | (
        {} if name == "mixcomp" else {"num_classes": C}
    )
    criterion, expected = (getattr(methods, name)(**sizes) for _ in range(2))
    running = hf_trainer(criterion, tmp_path, model=tagger(), data=data, epochs=2, data_collator=pad)
    if name == "elr" and places is None:
        with pytest.raises(InputError, match=r"index names samples with .* places"):
            running.train()
        return
    running.train()
    model = by_hand(expected, data)
    expected.total.copy_(criterion.total)
    assert_same(criterion, expected)
    assert_same(running.model, model)
    visits = criterion.record.visits
    if places is None:
        assert visits.tolist() == [2.0 * any(tag != -100 for tag in row) for row in sentences()["labels"]]
        assert visits.sum() > 0
    else:
        tagged = torch.tensor([tag != -100 for row in sentences()["labels"] for tag in row])
        assert torch.equal(visits > 0, tagged)


def test_numbers_that_do_not_fit_the_tokens_are_refused():
    with pytest.raises(InputError, match="after the tokenizer has cut them"):
        IndexCollator(pad)([{"input_ids": [5, 6], "labels": [0, 1], "index": [0, 1, 2]}])
    with pytest.raises(InputError, match='no column "tags"'):
        add_index(sentences(), places="tags")
