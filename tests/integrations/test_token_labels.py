"""Labels of tokens under the trainer of Hugging Face: padding, pieces of words, and a row for a sentence or for each token."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("datasets")

import datasets
import transformers

from compensate import InputError, methods
from compensate.integrations.transformers import CompensatedTrainer, IndexCollator, add_index

TAGS, N = 3, 12
LENGTHS = [3, 5, 4, 6, 3, 5, 4, 6, 3, 5, 4, 6]


def sentences():
    """Token numbers with a tag each; the first and last, and every second piece of a word, have none."""
    torch.manual_seed(0)
    ids = [torch.randint(5, 20, (n,)).tolist() for n in LENGTHS]
    tags = [[-100, *(-100 if t % 4 == 3 else t % TAGS for t in row[1:-1]), -100] for row in ids]
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
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=TAGS,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForTokenClassification(config)


def trainer(criterion, data, folder, model=None, epochs=2, **arguments):
    model = tagger() if model is None else model
    arguments = transformers.TrainingArguments(
        str(folder), num_train_epochs=epochs, per_device_train_batch_size=4, max_grad_norm=0.0, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_strategy="no", train_sampling_strategy="sequential", dataloader_pin_memory=False,
        **{"save_strategy": "no", **arguments},
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    steady = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    return CompensatedTrainer(
        model, arguments, train_dataset=data, data_collator=pad, criterion=criterion, optimizers=(optimizer, steady)
    )


def by_hand(criterion, data, epochs=2):
    """The same training in a plain loop."""
    model = tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    collate = IndexCollator(pad)
    for _ in range(epochs):
        for first in range(0, N, 4):
            batch = collate([data[k] for k in range(first, first + 4)])
            labels, index = batch.pop("labels"), batch.pop("index")
            optimizer.zero_grad()
            criterion(model(**batch).logits.movedim(-1, 1), labels, index).backward()
            optimizer.step()
        criterion.end_epoch()
    return model


def same(a, b):
    for (key, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        if key != "total":
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("places", [None, "labels"])
@pytest.mark.parametrize("name", ["logcomp", "mixcomp", "elr"])
def test_a_tagger_trains_with_a_row_for_each_sentence_or_token(name, places, tmp_path):
    data = add_index(sentences(), places=places)
    sizes = {"num_samples": N if places is None else sum(LENGTHS)} | (
        {} if name == "mixcomp" else {"num_classes": TAGS}
    )
    criterion, expected = (getattr(methods, name)(**sizes) for _ in range(2))
    running = trainer(criterion, data, tmp_path)
    if name == "elr" and places is None:
        with pytest.raises(InputError, match=r"index names samples with .* places"):
            running.train()
        return
    running.train()
    model = by_hand(expected, data)
    same(criterion, expected)
    same(running.model, model)
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
