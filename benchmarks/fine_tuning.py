"""Bad rows of a supervised fine-tuning, found by the training itself, and the accuracy after it; the cost of watching.

    python -m benchmarks.fine_tuning --data-dir DATA [--seeds 0,1,2] [--quick]

A tiny Llama with a word-level tokenizer learns from scratch to name the topic of news texts (AG-News) by TRL's SFTTrainer; a share of
the answers is that of another topic. Average precision of the wrong rows: by `watch`; by the mean loss of the answer in the last epoch and over the
training; and by training dynamics, the mean probability of the answer over the epochs (the confidence of data maps, after the idea of
TDRanker, EMNLP Findings 2025). Accuracy on clean held-out texts: plain training, DFT, GCE on tokens, token LogComp, and leaving out
the fifth of the rows that `watch` suspects most in the second half, all with the same steps. Leaving out was chosen on other seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RESULTS = Path(__file__).parent / "results" / "fine_tuning.json"
TOPICS = ("world", "sports", "business", "science")
METHODS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "nll": (None, {}), "dft": ("dft", {}), "gce": ("gce", {}), "token_logcomp": ("token_logcomp", {}),
    "drop": (None, {"drop": 0.2}),
}  # fmt: skip
WORDS, LENGTH, TRAIN, TEST, EPOCHS = 1500, 24, 1000, 1000, 6
SHARES = (0.1, 0.2)


def news(data_dir: Path, seed: int, share: float, train: int, test: int) -> tuple[Any, Any, np.ndarray]:
    """Training rows with wrong answers, clean test rows, and which answers are wrong."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, size in (("train", train), ("test", test)):
        frame = pd.read_csv(data_dir / f"noisy-agnews-{name}.csv")
        truth = frame["gt" if "gt" in frame else "label"].to_numpy()
        kept = rng.permutation(len(frame))[:size]
        texts = [" ".join(str(text).lower().split()[: LENGTH - 8]) for text in frame["text"].iloc[kept]]
        parts.append((texts, truth[kept].astype(int)))
    (texts, y), held = parts
    wrong = rng.random(train) < share
    given = np.where(wrong, (y + rng.integers(1, 4, train)) % 4, y)
    rows = [
        {"prompt": f"{text} topic :", "completion": f" this is {TOPICS[c]}"}
        for text, c in zip(texts, given, strict=True)
    ]
    return rows, held, wrong


def tokenizer(texts: list[str]) -> Any:
    from collections import Counter

    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.Whitespace()
    counts = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
    words = dict.fromkeys(["<pad>", "<eos>", "<unk>", *TOPICS, *(word for word, _ in counts.most_common(WORDS))])
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = split
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def trained(
    rows: Any, seed: int, method: str | None, settings: dict[str, Any], watched: bool, epochs: int, size: int = 64
) -> dict[str, Any]:
    """A training; its trainer, the record of `watch`, and the losses of all tokens in each epoch."""
    import datasets
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from compensate.integrations import watch

    datasets.disable_progress_bars()
    words = tokenizer([row["prompt"] + row["completion"] for row in rows])
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2, num_attention_heads=4,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    folder = tempfile.mkdtemp()
    args = SFTConfig(
        folder, max_length=2 * LENGTH, num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=2e-3, seed=seed,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no", logging_strategy="no",
    )  # fmt: skip
    data = datasets.Dataset.from_list(rows)
    trainer = SFTTrainer(LlamaForCausalLM(config), args, train_dataset=data, processing_class=words)
    found: Any = watch(trainer, method=method, **settings) if watched else None
    each: list[np.ndarray] = []

    class Epochs(TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            if found is not None:
                each.append(-found.total[:, 0].numpy().copy())

    trainer.add_callback(Epochs())
    start = time.process_time()  # of this process: other work on the machine does not count
    trainer.train()
    return {"trainer": trainer, "found": found, "each": np.diff([np.zeros_like(each[0]), *each], axis=0) if each else None,
            "seconds": time.process_time() - start}  # fmt: skip


def accuracy(trainer: Any, texts: list[str], truth: np.ndarray) -> float:
    """The share of held-out texts whose topic is the likeliest of the four after the prompt."""
    import torch

    words, model = trainer.processing_class, trainer.model.eval()
    topics = words.convert_tokens_to_ids(list(TOPICS))
    ids = [words(f"{text} topic : this is")["input_ids"] for text in texts]
    last = torch.tensor([len(one) - 1 for one in ids])
    padded = torch.tensor([one + [0] * (int(last.max()) + 1 - len(one)) for one in ids])  # later tokens do not count
    with torch.no_grad():
        found = [
            model(some).logits[torch.arange(len(some)), at][:, topics].argmax(-1)
            for some, at in zip(padded.split(100), last.split(100), strict=True)
        ]
    return float(np.mean(torch.cat(found).numpy() == truth))


def detection(run: dict[str, Any], wrong: np.ndarray) -> dict[str, float]:
    """Average precision by the score of the record, by mean losses, and by training dynamics."""
    from sklearn.metrics import average_precision_score

    found, each = run["found"], run["each"]
    table = found.suspects().set_index("index").sort_index()
    learned = found.visits.numpy() > 0
    ends = zip(found.starts[table.index], found.starts[table.index + 1], strict=True)
    rows = [np.arange(a, b)[learned[a:b]] for a, b in ends]
    by_epoch = np.stack([[losses[here].mean() for here in rows] for losses in each])
    confidence = np.stack([[np.exp(-losses[here]).mean() for here in rows] for losses in each]).mean(0)
    scores = {
        "watch": table["score"].to_numpy(), "mean loss, last epoch": by_epoch[-1], "mean loss, all epochs": by_epoch.mean(0),
        "training dynamics": -confidence,
    }  # fmt: skip
    return {f"AP {name}": float(average_precision_score(wrong[table.index], score)) for name, score in scores.items()}


def cost(data_dir: Path, quick: bool) -> dict[str, float]:
    """Seconds of a step with and without watching, alternating; a model of a size that a CPU trains in a second a step."""
    rows, _, _ = news(data_dir, 99, 0.1, 64 if quick else 160, 1)
    pairs = []
    for k in range(2 if quick else 6):
        order = (False, True) if k % 2 else (True, False)
        pairs.append(
            dict(zip(order, (trained(rows, 0, None, {}, watched, 1, 512)["seconds"] for watched in order), strict=True))
        )
    ratios = sorted(pair[True] / pair[False] for pair in pairs[1:])
    steps = -(-len(rows) // 32)
    return {
        "ratio of a watched training": statistics.median(ratios),
        "seconds of a plain step": statistics.median(p[False] for p in pairs) / steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--quick", action="store_true", help="one seed and few rows, nothing stored")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    train, test, epochs = (200, 100, 2) if asked.quick else (TRAIN, TEST, EPOCHS)
    stored: dict[str, Any] = {"command": "python -m benchmarks.fine_tuning --data-dir DATA", "runs": {}}
    if asked.out.is_file() and not asked.quick:
        stored = json.loads(asked.out.read_text())
    for share in SHARES:
        for seed in ["0"] if asked.quick else asked.seeds.split(","):
            rows, (texts, truth), wrong = news(asked.data_dir, int(seed), share, train, test)
            draw = stored["runs"].setdefault(f"{share:.0%}", {}).setdefault(seed, {})
            for name in asked.methods.split(","):
                if f"accuracy {name}" in draw:
                    continue
                run = trained(rows, int(seed), *METHODS[name], True, epochs)
                draw |= {f"accuracy {name}": round(accuracy(run["trainer"], texts, truth), 4)}
                if name == "nll":
                    draw |= {key: round(value, 4) for key, value in detection(run, wrong).items()}
                print(share, seed, name, draw, flush=True)
                if not asked.quick:
                    asked.out.write_text(json.dumps(stored, indent=1) + "\n")
    if "cost" not in stored:
        stored["cost"] = {name: round(value, 4) for name, value in cost(asked.data_dir, asked.quick).items()}
    if not asked.quick:
        asked.out.write_text(json.dumps(stored, indent=1) + "\n")
    print(table(stored))


def table(stored: dict[str, Any]) -> str:
    """The means over seeds as a table of Markdown."""
    names = list(dict.fromkeys(name for draws in stored["runs"].values() for one in draws.values() for name in one))
    lines = ["| wrong answers | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for share, draws in stored["runs"].items():
        lines.append(
            f"| {share} | "
            + " | ".join(f"{statistics.mean(one[name] for one in draws.values()):.3f}" for name in names)
            + " |"
        )
    return "\n".join([*lines, "", f"{stored['cost']}"])


if __name__ == "__main__":
    main()
