"""Hugging Face: a small transformer learns the sentiment of made-up sentences, a fifth of them wrongly labelled.

The model has random weights, so that nothing is downloaded; with your own, use `from_pretrained`.

Run:  python examples/integrations/transformers_trainer.py
"""

from __future__ import annotations

import tempfile

import datasets
import numpy as np
import transformers

import compensate
from compensate.integrations.transformers import CompensatedTrainer, add_index

WORDS = ["[PAD]", "the", "film", "was", "a", "and", "good", "fine", "great", "lovely", "bad", "dull", "poor", "weak"]


def sentences(n: int = 400):
    """A data set of token numbers and labels, and which labels are wrong."""
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, n)
    rows = [[*rng.integers(1, 6, 5), *(rng.integers(6, 10, 2) if good else rng.integers(10, 14, 2))] for good in true]
    wrong = rng.random(n) < 0.2
    columns = {
        "input_ids": [[int(w) for w in rng.permutation(row)] for row in rows],
        "labels": np.where(wrong, 1 - true, true).tolist(),
    }
    return datasets.Dataset.from_dict(columns), wrong


def main(epochs: int = 4) -> None:
    data, wrong = sentences()
    train = add_index(data)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=2,
    )  # fmt: skip
    criterion = compensate.methods.logcomp(num_samples=len(train), num_classes=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, num_train_epochs=epochs, per_device_train_batch_size=16, learning_rate=2e-3, report_to=[],
            disable_tqdm=True, use_cpu=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        )  # fmt: skip
        model = transformers.BertForSequenceClassification(config)
        CompensatedTrainer(model, arguments, train_dataset=train, criterion=criterion).train()
    first = criterion.suspects(top=60).index
    print(f"of the 60 most suspect labels {wrong[first].mean():.0%} are wrong")


if __name__ == "__main__":
    main()
