"""A watched training: the loss stays the same number, rows keep their index, and bad rows come first."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from compensate import InputError, methods
from compensate.integrations import watch
from compensate.integrations.fine_tuning import ROW
from compensate.terms import Strength
from processes import run_pair, start

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
trl = pytest.importorskip("trl", reason="TRL is not installed; the extra test has it")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]

WORDS, PAIRED, BAD = 24, 12, 8
ROWS = 96


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.disable_progress_bars()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: k for k, word in enumerate(["<pad>", "<eos>", "<unk>", *(f"w{k}" for k in range(WORDS))])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def llama(kind: Any = None, **more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"use_cache": False}  # attention then stops at the ends of packed texts
    config = transformers.LlamaConfig(
        vocab_size=WORDS + 3, pad_token_id=0, eos_token_id=1, bos_token_id=None, **sizes, **more
    )
    return (kind or transformers.LlamaForCausalLM)(config)


def bad(rows: int = ROWS) -> set[int]:
    return set(range(0, rows, BAD))


def texts(rows: int = ROWS) -> Any:
    """A word is answered by its partner, some time more often; a few answers are those to another word."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(rows):
        word, times = int(rng.integers(PAIRED)), int(rng.integers(2, 4))
        answer = (word + 5) % PAIRED + PAIRED if k in bad(rows) else word + PAIRED
        made.append({"prompt": f"w{word} w{word}", "completion": f" w{answer}" * times})
    return datasets.Dataset.from_list(made)


def preferences(rows: int = ROWS) -> Any:
    """The partner is preferred to any other word; a few pairs are exchanged."""
    rng = np.random.default_rng(0)
    made = []
    for k in range(rows):
        word = int(rng.integers(PAIRED))
        two = [f" w{word + PAIRED}", f" w{(word + 1 + int(rng.integers(PAIRED - 1))) % PAIRED + PAIRED}"]
        two = two[::-1] if k in bad(rows) else two
        made.append({"prompt": f"w{word}", "chosen": two[0], "rejected": two[1]})
    return datasets.Dataset.from_list(made)


def common(folder: Path, **more: Any) -> dict[str, Any]:
    settings = {
        "report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "num_train_epochs": 6, "seed": 0,
        "per_device_train_batch_size": 8, "logging_steps": 1, "learning_rate": 2e-2, "output_dir": str(folder),
    }  # fmt: skip
    return settings | more


def sft(folder: Path, data: Any = None, **more: Any) -> Any:
    args = trl.SFTConfig(max_length=32, **common(folder, **more))
    return trl.SFTTrainer(llama(), args, train_dataset=texts() if data is None else data, processing_class=tokenizer())


def dpo(folder: Path, data: Any = None, **more: Any) -> Any:
    args = trl.DPOConfig(max_length=32, beta=0.5, **common(folder, **more))
    data = preferences() if data is None else data
    return trl.DPOTrainer(llama(), llama(), args, train_dataset=data, processing_class=tokenizer())


def reward(folder: Path, data: Any = None, **more: Any) -> Any:
    args = trl.RewardConfig(max_length=32, **common(folder, **more))
    model = llama(transformers.LlamaForSequenceClassification, num_labels=1)
    return trl.RewardTrainer(
        model, args, train_dataset=preferences() if data is None else data, processing_class=tokenizer()
    )


def classifier(folder: Path, data: Any = None, **more: Any) -> Any:
    rng = np.random.default_rng(0)
    words = rng.integers(PAIRED, size=ROWS)
    labels = [int(w % 3) if k not in bad() else int((w + 1) % 3) for k, w in enumerate(words)]
    rows = datasets.Dataset.from_dict(
        {"input_ids": [[int(w) + 3, 3 + k % 4] for k, w in enumerate(words)], "labels": labels}
    )
    args = transformers.TrainingArguments(**common(folder, **more))
    model = llama(transformers.LlamaForSequenceClassification, num_labels=3)
    return transformers.Trainer(model, args, train_dataset=rows, processing_class=tokenizer())


def causal(folder: Path, data: Any = None, **more: Any) -> Any:
    """A language model with the trainer of transformers; texts of several lengths, padded on the left."""
    words = tokenizer()
    words.padding_side = "left"
    rows = [words(row["prompt"] + row["completion"])["input_ids"] for row in texts()]
    args = transformers.TrainingArguments(**common(folder, **more))
    collator = transformers.DataCollatorForLanguageModeling(words, mlm=False)
    data = datasets.Dataset.from_dict({"input_ids": rows})
    return transformers.Trainer(llama(), args, train_dataset=data, processing_class=words, data_collator=collator)


TRAINERS = {"sft": sft, "dpo": dpo, "reward": reward, "classifier": classifier, "causal": causal}


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def average_precision(suspects: pd.DataFrame) -> float:
    hits = np.isin(suspects["index"].to_numpy(), list(bad()))
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


@pytest.mark.parametrize("name", TRAINERS)
def test_the_loss_is_bit_equal_and_bad_rows_come_first(name: str, tmp_path: Path) -> None:
    plain, watched = (TRAINERS[name](tmp_path / part) for part in ("plain", "watched"))
    found = watch(watched)
    plain.train()
    watched.train()
    assert losses(plain) == losses(watched)
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)
    suspects = found.suspects()
    assert sorted(suspects["index"]) == list(range(ROWS))
    assert average_precision(suspects) > 0.6
    listed = pd.read_csv(tmp_path / "watched" / "compensate" / "suspects.csv")
    assert listed["index"].tolist() == suspects["index"].tolist()
    assert (tmp_path / "watched" / "compensate" / "report.html").read_text().startswith("<!doctype html>")


def test_scores_are_means_over_visits_beyond_those_of_the_words(tmp_path: Path) -> None:
    """Against losses of the model itself: a learning rate of zero makes all visits equal."""
    trainer = sft(tmp_path, learning_rate=0.0, num_train_epochs=2, per_device_train_batch_size=ROWS)  # one running mean
    found = watch(trainer)
    trainer.train()
    by_word: dict[int, list[float]] = {}
    per_row = []
    for ids, labels in zip(trainer.train_dataset["input_ids"], trainer.train_dataset["labels"], strict=True):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([ids])).logits[0, :-1]
        each = F.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").tolist()
        kept = [(word, loss) for word, loss, label in zip(ids[1:], each, labels[1:], strict=True) if label != -100]
        per_row.append(kept)
        for word, loss in kept:
            by_word.setdefault(word, []).append(loss)
    usual = {word: sum(some) / len(some) for word, some in by_word.items()}
    table = found.suspects().set_index("index")
    for row, kept in enumerate(per_row):
        assert table["loss"][row] == pytest.approx(sum(loss for _, loss in kept) / len(kept), abs=1e-5)
        assert table["score"][row] == pytest.approx(sum(loss - usual[w] for w, loss in kept) / len(kept), abs=1e-5)
        assert table["visits"][row] == 2


def test_margins_of_pairs_are_those_of_the_models(tmp_path: Path) -> None:
    for k, (make, margin) in enumerate(((dpo, 0.0), (reward, 0.3))):
        data = preferences()
        data = data.add_column("margin", [margin] * ROWS) if margin else data
        trainer = make(tmp_path / str(k), data, learning_rate=0.0, num_train_epochs=1)
        found = watch(trainer)
        trainer.train()
        if make is dpo:  # policy and reference are equal
            expected = [math.log(2)] * ROWS
        else:
            one, two = (
                torch.stack([trainer.model(torch.tensor([ids])).logits[0, 0] for ids in trainer.train_dataset[name]])
                for name in ("chosen_ids", "rejected_ids")
            )
            expected = (-F.logsigmoid(one - two - margin)).tolist()
        np.testing.assert_allclose(found.suspects().set_index("index")["loss"].sort_index(), expected, atol=1e-5)


def test_spans_name_the_tokens_that_carry_the_score(tmp_path: Path) -> None:
    words = [f"w{k % PAIRED} w{k % PAIRED} w{k % PAIRED} w{k % PAIRED}" for k in range(ROWS)]
    words[17] = "w5 w5 w23 w5"
    words[30] = "w1 w2 w23 w2"
    data = datasets.Dataset.from_dict({"text": words})
    trainer = sft(tmp_path, data, num_train_epochs=20)
    found = watch(trainer)
    trainer.train()
    first = found.suspects(top=2).set_index("index")
    assert 17 in first.index or 30 in first.index
    row = 17 if 17 in first.index else 30
    assert first["spans"][row]
    assert first["text"][row]


# --- rows keep their index ----------------------------------------------------------------------------------------


def suspects_of(trainer: Any, *args: Any, **settings: Any) -> pd.DataFrame:
    found = watch(trainer, *args, **settings)
    trainer.train()
    return found.suspects().set_index("index").sort_index()


def test_rows_keep_their_index_through_filters_shuffling_and_accumulation(tmp_path: Path) -> None:
    still = {"learning_rate": 0.0, "num_train_epochs": 1}
    plain = suspects_of(sft(tmp_path / "a", **still))
    shuffled = suspects_of(sft(tmp_path / "b", shuffle_dataset=True, **still), texts())
    assert shuffled.index.tolist() == plain.index.tolist()
    np.testing.assert_allclose(shuffled["loss"], plain["loss"], atol=1e-5)
    accumulated = suspects_of(
        sft(tmp_path / "c", per_device_train_batch_size=2, gradient_accumulation_steps=4, **still)
    )
    np.testing.assert_allclose(accumulated["loss"], plain["loss"], atol=1e-5)
    padded = [suspects_of(causal(tmp_path / str(n), per_device_train_batch_size=n, **still)) for n in (3, 8)]
    np.testing.assert_allclose(padded[0]["loss"], padded[1]["loss"], atol=1e-6)  # the same tokens count
    indexed = suspects_of(sft(tmp_path / "d", texts().add_column("index", [k + 100 for k in range(ROWS)]), **still))
    assert indexed.index.tolist() == [k + 100 for k in range(ROWS)]
    np.testing.assert_allclose(indexed["loss"], plain["loss"], atol=1e-5)
    long = texts().to_list()
    long[3]["prompt"] = " ".join(["w1"] * 40)  # nothing of the answer is left after truncation
    alone = suspects_of(sft(tmp_path / "f", datasets.Dataset.from_list(long), shuffle_dataset=True, **still))
    filtered = suspects_of(
        sft(tmp_path / "e", datasets.Dataset.from_list(long), **still), datasets.Dataset.from_list(long)
    )
    assert filtered.index.tolist() == [k for k in range(ROWS) if k != 3]
    assert alone.index.tolist() == filtered.index.tolist()
    np.testing.assert_allclose(alone["loss"], filtered["loss"], atol=1e-5)
    np.testing.assert_allclose(filtered["loss"], plain.drop(index=3)["loss"], atol=1e-5)


# Adam takes whole steps along gradients that are rounding errors; TRL trains in 16 bits by default.
SMOOTH = {"optim": "sgd", "learning_rate": 0.2, "bf16": False, "num_train_epochs": 3}


def agree(one: pd.DataFrame, other: pd.DataFrame) -> None:
    """Every suspect is the same: its row, score, loss and visits. Training in 32 bits amplifies the order of additions."""
    columns = ["score", "loss", "visits"]
    np.testing.assert_allclose(one[columns], other[columns], rtol=0, atol=2e-5)
    assert one.index.tolist() == other.index.tolist() == list(range(ROWS))


def test_packed_rows_have_the_same_suspects(tmp_path: Path) -> None:
    whole = SMOOTH | {"per_device_train_batch_size": ROWS}  # the same batches, packed or not
    with pytest.raises(InputError, match=r"packed its rows: give it the data set"):
        watch(sft(tmp_path / "a", packing=True, **whole))
    packed = suspects_of(sft(tmp_path / "b", packing=True, **whole), texts())
    agree(packed, suspects_of(sft(tmp_path / "c", **whole)))


def interrupted(make: Any, folder: Path, stop: int) -> None:
    """Trains, and ends as a killed process does."""

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == stop:
                os._exit(9)

    trainer = make(folder, save_strategy="epoch", num_train_epochs=3)
    watch(trainer, method="r3m", lam=0.3, drop=0.2)
    trainer.add_callback(Kill())
    trainer.train()


@pytest.mark.parametrize("make", [sft, causal, dpo, reward])
def test_a_killed_training_that_is_resumed_has_the_same_suspects(make: Any, tmp_path: Path) -> None:
    whole, resumed = (make(tmp_path / name, save_strategy="epoch", num_train_epochs=3) for name in ("whole", "killed"))
    found, again = (watch(trainer, method="r3m", lam=0.3, drop=0.2) for trainer in (whole, resumed))
    whole.train()
    process = start(interrupted, make, tmp_path / "killed", 29)
    process.join()
    assert process.exitcode == 9
    resumed.train(resume_from_checkpoint=str(tmp_path / "killed" / "checkpoint-24"))
    pd.testing.assert_frame_equal(again.suspects(), found.suspects())
    assert torch.equal(next(again.criterion.tables()).weight, next(found.criterion.tables()).weight)


def in_two(make: Any, folder: Path, settings: dict[str, Any]) -> None:
    found = suspects_of(make(folder, per_device_train_batch_size=4, **SMOOTH), **settings)
    if os.environ["RANK"] == "0":
        found.to_json(folder / "found.json")


@pytest.mark.parametrize(("make", "settings"), [
    (sft, {}), (dpo, {}), (reward, {"method": "r3m", "lam": 0.3}), (sft, {"method": "logcomp", "per": "sequence", "lam": 0.3}), (sft, {"drop": 0.2}),
])  # fmt: skip
def test_two_processes_have_the_suspects_of_one(make: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    run_pair(tmp_path, in_two, make, tmp_path / "two", settings, LOCAL_WORLD_SIZE="2", ACCELERATE_USE_CPU="true")
    agree(pd.read_json(tmp_path / "two" / "found.json"), suspects_of(make(tmp_path / "one", **SMOOTH), **settings))


# --- compensation -------------------------------------------------------------------------------------------------


def test_a_method_compensates_the_tokens_and_the_first_loss_is_that_of_the_formula(tmp_path: Path) -> None:
    plain, dynamic, official = (sft(tmp_path / str(k), **({"loss_type": "dft"} if k == 2 else {})) for k in range(3))
    watch(dynamic, method="dft")
    for trainer in (plain, dynamic, official):
        trainer.train()
    np.testing.assert_allclose(losses(dynamic)[:5], losses(official)[:5], rtol=1e-3)
    assert not np.allclose(losses(plain), losses(official), rtol=1e-2)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_rows_of_tokens_and_of_sequences_absorb_what_is_not_believed(per: str, tmp_path: Path) -> None:
    trainer = sft(tmp_path, num_train_epochs=10)
    found = watch(trainer, method="r3m", lam=0.3, per=per)
    trainer.train()
    (table,) = found.criterion.tables()
    assert len(table.weight) == (len(found.total) if per == "token" else ROWS)
    size = (
        table.weight
        if per == "sequence"
        else torch.stack([table.weight[a:b].sum() for a, b in zip(found.starts[:-1], found.starts[1:], strict=True)])
    )
    rows = sorted(bad())
    others = [k for k in range(ROWS) if k not in bad()]
    assert size[rows].mean() > size[others].mean()


@pytest.mark.parametrize("make", [sft, dpo])
def test_suspect_rows_are_left_out_in_the_second_half(make: Any, tmp_path: Path) -> None:
    plain, dropping = make(tmp_path / "plain"), make(tmp_path / "drop")
    found = watch(dropping, drop=0.1)
    for trainer in (plain, dropping):
        trainer.train()
    half = len(losses(plain)) // 2
    assert losses(plain)[:half] == losses(dropping)[:half]
    assert sum(losses(dropping)[half:]) < sum(losses(plain)[half:])  # the loss of rows that are left out is zero
    left_out = set(torch.nonzero(found.dropped)[:, 0].tolist())
    assert left_out == set(found.suspects(top=ROWS // 10)["index"])
    assert len(left_out & bad()) > len(left_out) / 2
    assert found.suspects()["visits"].eq(6).all()
    with pytest.raises(InputError, match="drop leaves out texts and pairs"):
        watch(classifier(tmp_path), drop=0.1)


def test_a_training_of_one_epoch_drops_nothing_and_says_so(tmp_path: Path) -> None:
    trainer = dpo(tmp_path, num_train_epochs=1)
    watch(trainer, drop=0.1)
    with pytest.warns(UserWarning, match="drop leaves nothing out"):
        trainer.train()


@pytest.mark.parametrize(("make", "settings"), [
    (dpo, {"loss_type": "ipo"}), (dpo, {"loss_type": ["sigmoid", "sft"]}), (sft, {"loss_type": "dft"}),
    (dpo, {"use_weighting": True}), (dpo, {"f_divergence_type": "js_divergence"}), (reward, {"center_rewards_coefficient": 0.1}),
])  # fmt: skip
def test_losses_that_a_method_cannot_change_are_refused(make: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    trainer, name = make(tmp_path, **settings), next(iter(settings))
    for asked in ({"method": "gce"}, {"drop": 0.1}):
        with pytest.raises(InputError, match=f"{name} is .* nll of SFT, sigmoid of DPO"):
            watch(trainer, **asked)
    watch(trainer)


@pytest.mark.parametrize("make", [dpo, reward])
def test_rows_of_pairs(make: Any, tmp_path: Path) -> None:
    trainer = make(tmp_path, num_train_epochs=10)
    found = watch(trainer, method="r3m", lam=0.3)
    trainer.train()
    (table,) = found.criterion.tables()
    rows = sorted(bad())
    assert table.weight[rows].mean() > 1.5 * table.weight.mean()


@pytest.mark.parametrize("make", [sft, dpo, reward])
def test_the_strength_of_a_method_is_measured_on_withheld_tokens_or_pairs(make: Any, tmp_path: Path) -> None:
    trainer = make(tmp_path, None if make is sft else preferences(240))
    found = watch(trainer, method="robust")
    trainer.train()
    strength = Strength.of(found.criterion)
    assert strength.num_samples == len(found)
    curve = strength.curve().numpy()
    assert len(curve) == 6
    assert curve[0, 0] < 0.1 < curve[-1, 0]
    assert (np.diff(curve[:, 0]) >= 0).all()
    means = found.suspects().set_index("index")["score"]
    wrong = sorted(bad(len(means)))
    assert means[wrong].mean() > means.drop(index=wrong).mean()
    with pytest.raises(InputError, match='use per="token"'):
        watch(sft(tmp_path), method="robust", per="sequence")


def test_a_criterion_of_ones_own_and_methods_that_cannot_work(tmp_path: Path) -> None:
    trainer = reward(tmp_path, num_train_epochs=1)
    watch(trainer, method=methods.gce(reduction="sum"))
    trainer.train()
    with pytest.raises(InputError, match="watched already"):
        watch(trainer)
    with pytest.raises(InputError, match="lam: settings of a method, and none is given"):
        watch(reward(tmp_path), lam=0.3)
    with pytest.raises(InputError, match="needs more than logits"):
        watch(reward(tmp_path), method="pgd_at")
    with pytest.raises(InputError, match='expected "token" or "sequence"'):
        watch(reward(tmp_path), per="word")


def test_evaluation_is_not_recorded(tmp_path: Path) -> None:
    trainer = sft(tmp_path, num_train_epochs=1)
    found = watch(trainer)
    trainer.train()
    before = found.visits.clone()
    trainer.evaluate(texts(8))
    assert torch.equal(found.visits, before)
    assert ROW in trainer.train_dataset.column_names
