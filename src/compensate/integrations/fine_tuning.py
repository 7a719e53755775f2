r"""Finds bad rows from a training that runs anyway: `watch` for the trainers of `transformers` and TRL.

The log-probabilities that the trainer computes are added up for each token, pair or sample, before the step that learns from them:

.. math:: \bar l_j = \frac1{n_j} \sum_t -\log p_j^{(t)}, \qquad
          s_i = \frac1{|i|} \sum_{j \in i} (\bar l_j - m_{w_j})

where :math:`n_j` counts the visits :math:`t` of token :math:`j`. The score :math:`s_i` of a text is the mean loss of its tokens beyond
:math:`m_w`, the usual loss of the token :math:`w` in all texts: rare words are hard to predict in right texts too. The score of a
preference pair is its mean loss. Nothing else changes: the loss stays the same number.

With a ``method``, each token or pair is also compensated. A token is a choice between itself and all others, and a pair one between two
responses (`compensate.methods.language`), so every method of the table that reads logits alone can be used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compensate.auditing.findings import Findings, Provenance
from compensate.auditing.noise_model import judge
from compensate.auditing.result import Audit, build_audit
from compensate.auditing.write_back import write_csv
from compensate.core.criterion import Compensated
from compensate.data.dataset import Dataset, Floats, Ints, Source
from compensate.errors import InputError, one_of
from compensate.extras import stand_in
from compensate.files import make_folder
from compensate.integrations.transformers import INDEX, find_logits
from compensate.methods import METHODS, find, pair_logits, token_logits
from compensate.training import checkpoint

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:  # pragma: no cover
    TrainerCallback = stand_in("transformers", "hf")

ROW = "compensate_row"  # the column of row numbers, and the entry of a batch with the places of its tokens, pairs or samples
FOLDER = "compensate"  # of the record in the output folder and in checkpoints
SPAN = 1.0  # loss beyond the usual one, in nats, from which on a token belongs to a span: it is e times less likely than usual
PER = ("token", "sequence")


def watch(
    trainer: Any, dataset: Any = None, *, method: str | Compensated | None = None, per: Literal["token", "sequence"] = "token",
    **settings: Any,
) -> Watch:  # fmt: skip
    """Watches a training: afterwards `Watch.suspects` has the rows that look wrong, most suspect first.

    Call it after the trainer is made and before `trainer.train()`. Works with `transformers.Trainer` (classification and language models) and
    with TRL's `SFTTrainer`, `DPOTrainer` and `RewardTrainer`.

    Args:
        trainer: the trainer.
        dataset: the training set as it was given to the trainer. It is needed where the trainer packs rows; they are then found by their
            tokens. Other rows are found by a column ``index`` (see `compensate.integrations.transformers.add_index`), or their number.
        method: a row of `compensate.METHODS`, such as ``"r3m"`` for pairs or ``"token_logcomp"`` for texts, or a criterion for two classes. By
            default nothing is compensated, and the loss is the trainer's own.
        per: for texts with a method that keeps rows, whether each "token" or each "sequence" has one.
        settings: hyper-parameters of the method.

    >>> found = watch(trainer)                     # doctest: +SKIP
    >>> _ = trainer.train()                        # doctest: +SKIP
    >>> found.suspects(top=20)                     # doctest: +SKIP
    """
    one_of("per", per, *PER)
    if trainer.train_dataset is None or not hasattr(trainer.train_dataset, "column_names"):
        raise InputError("watch needs a trainer with a train_dataset of the library datasets, not a stream or a list.")
    return Watch(trainer, dataset, method, per, settings)


def _task(columns: list[str], rows: Any) -> str:
    if "chosen_ids" in columns:
        return "pair"
    if "input_ids" in columns and ("labels" not in columns or isinstance(rows[0]["labels"], (list, tuple))):
        return "text"
    if {"labels", "label"} & {*columns}:
        return "class"
    raise InputError(
        f"the training set has the columns {', '.join(columns)}; expected those that a Trainer, SFTTrainer, DPOTrainer or RewardTrainer prepares."
    )


@final
class Watch(TrainerCallback):
    """The record of a watched training; made by `watch`."""

    def __init__(self, trainer: Any, dataset: Any, method: Any, per: str, settings: Mapping[str, Any]) -> None:
        self.trainer, self.per = trainer, per
        rows = trainer.train_dataset
        self.task = _task(rows.column_names, rows)
        self.tokens = (
            "prompt_ids" if "prompt_ids" in rows.column_names else "chosen_ids" if self.task == "pair" else "input_ids"
        )
        if isinstance(rows[0].get("seq_lengths"), list):
            self.lengths: list[list[int]] = [list(one) for one in rows["seq_lengths"]]
        else:
            self.lengths = [[len(one)] if self.task == "text" else [1] for one in rows[self.tokens]]
        self.numbers = self._numbers(rows, dataset)
        known = [
            (row, n)
            for some, sizes in zip(self.numbers, self.lengths, strict=True)
            for row, n in zip(some, sizes, strict=True)
        ]
        size = np.zeros(max(row for row, _ in known) + 1, np.int64)
        for row, n in known:
            if row >= 0:
                size[row] = n
        self.starts: Ints = np.concatenate([[0], np.cumsum(size)])
        """(N + 1,) the place of the first token of each row; a pair and a sample have one place each."""
        self.lost = sum(row < 0 for row, _ in known)
        width = int(trainer.model.config.num_labels) if self.task == "class" else 1
        self.total = torch.zeros(int(self.starts[-1]), width)
        self.visits = torch.zeros(int(self.starts[-1]))
        self.criterion = self._criterion(method, settings)
        self._attach(rows)

    def _numbers(self, rows: Any, dataset: Any) -> list[list[int]]:
        """The row numbers of the texts in each prepared row; -1 where they are not known."""
        if INDEX in rows.column_names:
            return [[int(row)] for row in rows[INDEX]]
        packed = any(len(sizes) > 1 for sizes in self.lengths)
        if dataset is None:
            if packed:
                raise InputError(
                    "the trainer packed its rows: give the data set that it was made with, watch(trainer, dataset)."
                )
            kept = getattr(rows, "_indices", None)  # the numbers of rows before a filter or shuffling
            return [[k] for k in (range(len(rows)) if kept is None else kept.column(0).to_pylist())]
        given = [self.trainer.processing_class, self.trainer.args]
        if self.task == "text":
            given += [False, getattr(self.trainer, "_formatting_func", None)]
        args, whole = given[1], dataset
        before, args.shuffle_dataset = getattr(args, "shuffle_dataset", False), False
        try:
            whole = self.trainer._prepare_dataset(dataset.add_column(INDEX, list(range(len(dataset)))), *given, "train")
        finally:
            args.shuffle_dataset = before
        place: dict[tuple[int, ...], list[int]] = {}
        for row, ids in zip(whole[INDEX], whole[self.tokens], strict=True):
            place.setdefault(tuple(ids), []).append(int(row))
        found = []
        for ids, sizes in zip(rows[self.tokens], self.lengths, strict=True):
            ends = np.cumsum([0, *(sizes if self.task == "text" else [len(ids)])])
            equal = [place.get(tuple(ids[a:b]), [-1]) for a, b in pairwise(ends)]
            found.append([rows.pop(0) if len(rows) > 1 else rows[0] for rows in equal])  # equal rows in their order
        return found

    def _criterion(self, method: Any, settings: Mapping[str, Any]) -> Compensated | None:
        if method is None or isinstance(method, Compensated):
            return method
        if dist.is_initialized() and dist.get_world_size() > 1:
            raise InputError("method= is for a training in one process; leave it out to watch several.")
        row = find(method)
        if row.needs - {"index", "epochs", "steps"} or "feature" in row.taxonomy.target:
            able = ", ".join(name for name, one in METHODS.items() if one.needs <= {"index"})
            raise InputError(
                f"{row.name} needs more than the logits of a batch, which a watched training has not. Methods that work: {able}."
            )
        count = len(self.starts) - 1 if self.task != "text" or self.per == "sequence" else len(self.total)
        classes = self.total.shape[1] if self.task == "class" else 2
        made = row.make(num_samples=count, num_classes=classes, class_counts=[1] * classes, **settings)
        made.record, made.reduction = None, "sum"
        return made

    def _attach(self, rows: Any) -> None:
        trainer = self.trainer
        trainer.train_dataset = rows.add_column(ROW, self.numbers)
        columns, loss, collate = trainer._set_signature_columns_if_needed, trainer.compute_loss, trainer.data_collator

        def set_columns() -> None:
            columns()
            trainer._signature_columns = [*{*trainer._signature_columns, ROW}]

        def collated(samples: list[dict[str, Any]]) -> Any:
            samples = [dict(sample) for sample in samples]
            numbers = [sample.pop(ROW) for sample in samples if ROW in sample]
            batch = collate(samples)
            if numbers:
                batch[ROW] = self.places(numbers, samples, batch)
            return batch

        def compute_loss(model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            places = inputs.pop(ROW, None)
            if places is None or not model.training:
                return loss(model, inputs, *args, **kwargs)
            outputs: list[Any] = []
            reference: list[Any] = []
            hooks = [model.register_forward_hook(lambda _, __, output: outputs.append(output))]
            ref = getattr(trainer, "ref_model", None)
            hooks += (
                [ref.register_forward_hook(lambda _, __, output: reference.append(output))] if ref is not None else []
            )
            try:
                found = loss(model, inputs, *args, **kwargs)
            finally:
                for hook in hooks:
                    hook.remove()
            return self.observe(found, places, self.logits(inputs, outputs, reference))

        trainer._set_signature_columns_if_needed, trainer.data_collator, trainer.compute_loss = (
            set_columns,
            collated,
            compute_loss,
        )
        trainer.add_callback(self)

    # --- a batch ----------------------------------------------------------------------------------------------

    def places(self, numbers: list[list[int]], samples: list[dict[str, Any]], batch: Mapping[str, Any]) -> Tensor:
        """The places of the samples of a batch; for texts one of each token, -1 at padding."""
        if self.task != "text":
            return torch.tensor([row for (row,) in numbers])
        flat = []
        for rows, sample in zip(numbers, samples, strict=True):
            sizes = sample.get("seq_lengths") or [len(sample["input_ids"])]
            for row, n in zip(rows, sizes, strict=True):
                flat.append(torch.full((n,), -1) if row < 0 else torch.arange(n) + int(self.starts[row]))
        places = torch.full(batch["input_ids"].shape, -1)
        mask = batch.get("attention_mask")
        if mask is None:
            places.view(-1)[: sum(map(len, flat))] = torch.cat(flat)
        else:
            places[mask.bool()] = torch.cat(flat)
        return places

    def logits(self, inputs: Mapping[str, Any], outputs: list[Any], reference: list[Any]) -> tuple[Tensor, Tensor]:
        """(..., 2) or (B, C) the logits of tokens, pairs or samples, and their targets; -100 for tokens that are not learned."""
        output = outputs[0]
        if self.task == "class":
            return find_logits(output), inputs["labels"]
        if self.task == "pair":
            if "completion_mask" not in inputs:  # a reward model
                chosen, rejected = output.logits.squeeze(-1).chunk(2)
                margin = chosen - rejected - inputs.get("margin", 0.0)
            else:
                width = inputs["completion_mask"].shape[1] - 1
                logp = output.log_probs[:, -width:].sum(1)
                if "ref_chosen_logps" in inputs:
                    before = torch.cat([inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]])
                else:
                    before = (reference[0] if reference else outputs[1]).log_probs[:, -width:].sum(1)
                chosen, rejected = (self.trainer.beta * (logp - before)).chunk(2)
                margin = chosen - rejected
            return pair_logits(margin), torch.zeros(len(margin), dtype=torch.long, device=margin.device)
        labels = inputs["labels"][:, 1:]
        logp = getattr(output, "log_probs", None)
        if logp is None:
            logp = -F.cross_entropy(output.logits[:, :-1].transpose(1, 2).float(), labels, reduction="none")
        return token_logits(logp[:, -labels.shape[1] :]), torch.where(labels == -100, -100, 0)

    def observe(self, loss: Any, places: Tensor, found: tuple[Tensor, Tensor]) -> Any:
        """Records a batch; the trainer's loss, or the compensated one."""
        logits, target = found
        places = places.to(logits.device)
        places = places[:, 1:] if self.task == "text" else places
        with torch.no_grad():
            logp = logits.float().log_softmax(-1)
            kept = (places >= 0) & (target != -100)
            values = logp[kept] if self.task == "class" else logp[..., 0][kept][:, None]
            here = places[kept].to(self.total.device)
            self.total.index_add_(0, here, values.to(self.total.device))
            self.visits.index_add_(0, here, torch.ones(len(here), device=self.visits.device))
        if self.criterion is None:
            return loss
        plain = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum", ignore_index=-100)
        index = places.clamp(min=0)
        if self.task == "text" and self.per == "sequence":
            starts = torch.from_numpy(self.starts[1:]).to(index.device)
            index = torch.searchsorted(starts, index, right=True)
        compensated = self.criterion.train()(logits.flatten(0, -2), target.flatten(), index.flatten())
        total = loss[0] if isinstance(loss, tuple) else loss
        scale = total.detach() / plain.detach().clamp(min=torch.finfo(plain.dtype).tiny)  # of the trainer's own mean
        total = total + scale * (compensated - plain)
        return (total, *loss[1:]) if isinstance(loss, tuple) else total

    # --- the run ----------------------------------------------------------------------------------------------

    def _summed(self) -> tuple[Tensor, Tensor]:
        """The record of all processes."""
        total, visits = self.total.clone(), self.visits.clone()
        if dist.is_initialized() and dist.get_world_size() > 1:
            device = self.trainer.args.device
            both = [total.to(device), visits.to(device)]
            for one in both:
                dist.all_reduce(one)
            total, visits = (one.cpu() for one in both)
        return total, visits

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Continues the record of a checkpoint."""
        if self.criterion is not None:
            self.criterion.to(args.device).start(max(1, state.max_steps * args.gradient_accumulation_steps))
        if state.global_step == 0:
            return
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER)
        stored = checkpoint.latest(folder)
        if stored is None:
            raise InputError(
                f"{folder} has no record of this training; resume from a checkpoint of a watched training, or train again."
            )
        main = not dist.is_initialized() or dist.get_rank() == 0
        for own, name in ((self.total, "total"), (self.visits, "visits")):
            own.copy_(stored[name] if main else torch.zeros_like(own))
        if self.criterion is not None:
            self.criterion.load_state_dict(stored["criterion"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.criterion is not None:
            self.criterion.end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the record to a checkpoint."""
        total, visits = self._summed()
        if args.should_save:
            stored = {"total": total, "visits": visits} | (
                {} if self.criterion is None else {"criterion": self.criterion.state_dict()}
            )
            checkpoint.save_checkpoint(
                Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER), state.global_step, stored
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sums the records of all processes, and writes the list of suspects and the review page to the output folder."""
        self.total, self.visits = self._summed()
        if args.should_save:
            folder = make_folder(Path(args.output_dir, FOLDER))
            write_csv(folder / "suspects.csv", self.suspects())
            self.audit().report(folder / "report.html")

    # --- the result -------------------------------------------------------------------------------------------

    @property
    def losses(self) -> Floats:
        """(M,) the mean loss of each token or pair; NaN where it was not visited."""
        mean = self.total[:, 0] / self.visits
        return -mean.double().numpy()

    def _texts(self) -> dict[int, tuple[Any, NDArray[Any]]]:
        """By row, its tokens and the loss of each beyond the usual one, NaN where it was not learned."""
        tokens: dict[int, list[int]] = {}
        for numbers, sizes, ids in zip(
            self.numbers, self.lengths, self.trainer.train_dataset["input_ids"], strict=True
        ):
            ends = np.cumsum([0, *sizes])
            tokens |= {row: ids[a:b] for row, (a, b) in zip(numbers, pairwise(ends), strict=True) if row >= 0}
        losses, flat = self.losses, np.zeros(len(self.total), np.int64)
        for row, ids in tokens.items():
            flat[self.starts[row] : self.starts[row + 1]] = ids
        seen = np.isfinite(losses)
        sums, counts = (np.bincount(flat[seen], weights, int(flat.max()) + 1) for weights in (losses[seen], None))
        beyond = losses - (sums / np.maximum(counts, 1))[flat]
        return {row: (ids, beyond[self.starts[row] : self.starts[row + 1]]) for row, ids in tokens.items()}

    def suspects(self, top: int | None = None) -> pd.DataFrame:
        """Rows, most suspect first: index, score, loss, visits; for texts also the spans of tokens that carry the score, and their texts."""
        rows = np.flatnonzero(
            np.add.reduceat(np.append(self.visits.numpy(), 0), self.starts[:-1]) * (np.diff(self.starts) > 0) > 0
        )
        columns: dict[str, list[Any]] = {"index": rows.tolist(), "score": [], "loss": [], "visits": []}
        if self.task == "class":
            return self.audit().suspects.head(top if top is not None else len(rows))
        losses, texts = self.losses, self._texts() if self.task == "text" else {}
        decode = getattr(self.trainer.processing_class, "decode", str)
        for row in rows.tolist():
            here = slice(self.starts[row], self.starts[row + 1])
            beyond = texts[row][1] if texts else losses[here]
            columns["score"].append(float(np.nanmean(beyond)))
            columns["loss"].append(float(np.nanmean(losses[here])))
            columns["visits"].append(float(self.visits[here].max()))
            if texts:
                spans = _spans(beyond)
                columns.setdefault("spans", []).append("; ".join(f"{a}:{b}" for a, b in spans))
                columns.setdefault("text", []).append(" … ".join(decode(texts[row][0][a:b]) for a, b in spans))
        table = pd.DataFrame(columns)
        return table.sort_values("score", ascending=False, kind="stable", ignore_index=True).head(
            len(table) if top is None else top
        )

    def audit(self) -> Audit:
        """The suspects as an audit, whose `report` is a review page."""
        title = Path(self.trainer.args.output_dir).name or "the training"
        if self.task == "class":
            from compensate.auditing.api import audit_probabilities

            rows = np.flatnonzero(self.visits.numpy() > 0)
            p = (self.total[rows] / self.visits[rows, None]).softmax(-1).double().numpy()
            name = "labels" if "labels" in self.trainer.train_dataset.column_names else "label"
            given = dict(zip((one[0] for one in self.numbers), self.trainer.train_dataset[name], strict=True))
            return replace(
                audit_probabilities(p, np.array([given[row] for row in rows.tolist()]), title=title), index=rows
            )
        table = self.suspects().sort_values("index", ignore_index=True)
        score = table["score"].to_numpy()
        if self.task == "pair":
            log_q = np.stack([-score, np.log(-np.expm1(-np.maximum(score, 1e-9)))], 1)
        else:
            log_q = _likely_right(score)
        turned = np.arange(len(score)) % 2  # the noise model expects both classes
        verdict = judge(np.where(turned[:, None] == 1, log_q[:, ::-1], log_q), turned, simpler=np.inf)
        decode = getattr(self.trainer.processing_class, "decode", str)
        texts = {row: decode(ids) for row, (ids, _) in self._texts().items()} if self.task == "text" else {}
        if not texts:
            both = zip(*(self.trainer.train_dataset[name] for name in ("chosen_ids", "rejected_ids")), strict=True)
            texts = {some[0]: " ⟷ ".join(map(decode, ids)) for some, ids in zip(self.numbers, both, strict=True)}
        shown = np.array([texts[row] for row in table["index"]], dtype=object)
        index, zeros = table["index"].to_numpy(), np.zeros(len(table), np.int64)
        data = Dataset(shown, zeros, ("keep", "drop"), index=index, raw=shown, source=Source(kind="text", title=title))
        return build_audit(data.source, Findings(
            classes=("keep", "drop"), index=index, given=zeros, suggested=zeros + 1, log_odds=verdict.log_odds, p_error=verdict.p_error,
            evidence={"score": score, "loss": table["loss"].to_numpy()}, noise_rate=verdict.share, data=data,
            provenance=Provenance(views={"the training": 1.0}, by_chance=False),
        ))  # fmt: skip


def _spans(beyond: NDArray[Any]) -> list[tuple[int, int]]:
    """Runs of tokens whose loss is `SPAN` or more beyond the usual one, those that carry most of it first; at most three.

    >>> _spans(np.array([0.0, 2.0, 3.0, np.nan, -1.0, 1.5]))
    [(1, 3), (5, 6)]
    """
    high = np.concatenate([[False], np.nan_to_num(beyond, nan=-1.0) >= SPAN, [False]])
    edges = np.flatnonzero(high[1:] != high[:-1]).reshape(-1, 2).tolist()
    return [(a, b) for a, b in sorted(edges, key=lambda span: -np.sum(beyond[slice(*span)]))[:3]]


def _likely_right(score: Floats) -> Floats:
    """(N, 2) log probabilities that rows are right and wrong, by how far the score is above the median in units of its usual spread below."""
    middle, low = np.quantile(score, [0.5, 0.1587])
    odds = (score - middle) / max(
        middle - low, 1e-9
    ) - 3.0  # three deviations of the lower half above the median are even odds
    return -np.logaddexp(0, np.stack([odds, -odds], 1))
