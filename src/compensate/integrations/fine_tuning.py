r"""Finds bad rows from a training that runs anyway: `watch` for the trainers of `transformers` and TRL.

The log-probabilities that the trainer computes are added up for each token, pair or sample, before the step that learns from them:

.. math:: r_j = \frac1{n_j} \sum_t \bigl( -\log p_j^{(t)} - m^{(t)} \bigr), \qquad
          s_i = \frac1{|i|} \sum_{j \in i} (r_j - m_{w_j})

where :math:`n_j` counts the visits :math:`t` of token :math:`j`. :math:`m^{(t)}` is a running mean of the losses of the last batches: a row
that comes early in an epoch meets a younger model. :math:`m_w` is the mean of :math:`r` over all places of the token :math:`w`: rare words are
hard to predict in right texts too. The score of a preference pair is its :math:`r`. Nothing else changes: the loss stays the same number.

With a ``method``, each token or pair is also compensated. A token is a choice between itself and all others, and a pair one between two
responses (`compensate.methods.language`), so every method of the table that reads logits alone can be used. With ``drop``, the share of rows with
the highest scores is left out after each epoch that ends in the second half of the training; the scores of all rows are still recorded.
"""

from __future__ import annotations

import math
import warnings
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

from compensate.auditing.api import audit_probabilities
from compensate.auditing.findings import Findings, Provenance
from compensate.auditing.noise_model import judge
from compensate.auditing.result import Audit, build_audit
from compensate.auditing.write_back import write_csv
from compensate.core.criterion import Compensated
from compensate.core.statistics import Statistic
from compensate.data.dataset import Dataset, Estimate, Floats, Ints, Source
from compensate.errors import InputError, check, one_of
from compensate.extras import stand_in
from compensate.files import make_folder
from compensate.integrations.transformers import INDEX, find_logits
from compensate.methods import find, pair_logits, token_logits
from compensate.training import checkpoint
from compensate.training.distributed import Exchange

try:
    from transformers import TrainerCallback
except ModuleNotFoundError:  # pragma: no cover
    TrainerCallback = stand_in("transformers", "hf")

ROW = "compensate_row"  # the column of row numbers, and the entry of a batch with the places of its tokens, pairs or samples
FOLDER = "compensate"  # of the record in the output folder and in checkpoints
SPAN = 1.0  # loss beyond the usual one, in nats, from which on a token belongs to a span: it is e times less likely than usual
HORIZON = 64  # texts or pairs over which the running mean of losses reaches back: a few batches of usual sizes
# The settings under which a trainer's loss is that of the recorded log-probabilities, which a method can change
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "loss_type": ("nll", ["sigmoid"]), "f_divergence_type": ("reverse_kl",), "use_weighting": (False,), "ld_alpha": (None,),
    "label_smoothing": (0.0,), "center_rewards_coefficient": (None,),
}  # fmt: skip
EVEN = 3.0  # deviations above the median at which a text is as likely wrong as right


def watch(
    trainer: Any, dataset: Any = None, *, method: str | Compensated | None = None, per: Literal["token", "sequence"] = "token",
    drop: float = 0.0, **settings: Any,
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
        drop: the share of texts or pairs, most suspect first, to leave out after each epoch that ends in the second half, such as 0.2.
        settings: hyper-parameters of the method.

    >>> found = watch(trainer)                     # doctest: +SKIP
    >>> _ = trainer.train()                        # doctest: +SKIP
    >>> found.suspects(top=20)                     # doctest: +SKIP
    """
    one_of("per", per, "token", "sequence")
    if not hasattr(trainer.train_dataset, "column_names"):
        raise InputError("watch needs a trainer with a train_dataset of the library datasets, not a stream or a list.")
    if ROW in trainer.train_dataset.column_names:
        raise InputError("this trainer is watched already; make a new one to watch it in another way.")
    if settings and method is None:
        raise InputError(f"{', '.join(settings)}: settings of a method, and none is given; add method=.")
    check(0 <= drop < 1, "a share of the rows in [0, 1)", drop=drop)
    return Watch(trainer, dataset, method, per, drop, settings)


@final
class Watch(TrainerCallback):
    """The record of a watched training; made by `watch`."""

    def __init__(
        self, trainer: Any, dataset: Any, method: Any, per: str, drop: float, settings: Mapping[str, Any]
    ) -> None:
        self.trainer, self.per, self.drop = trainer, per, drop
        rows, names = trainer.train_dataset, trainer.train_dataset.column_names
        several = "labels" not in names or isinstance(rows[0]["labels"], list)
        self.task = "preference" if "chosen_ids" in names else "text" if "input_ids" in names and several else "class"
        """Whether rows are preference pairs, texts, or samples with a class."""
        self.tokens = "chosen_ids" if self.task == "preference" else "input_ids"
        self.lengths: list[list[int]] = [[1]] * len(rows)
        """The number of places of the rows that each prepared row holds: one for each token of a text, else one."""
        if self.task == "text":
            packed = "seq_lengths" in names
            self.lengths = rows["seq_lengths"][:] if packed else [[len(ids)] for ids in rows["input_ids"]]
        self.numbers = self._numbers(rows, dataset)
        size = np.zeros(max(map(max, self.numbers)) + 1, np.int64)
        for numbers, lengths in zip(self.numbers, self.lengths, strict=True):
            known = {row: n for row, n in zip(numbers, lengths, strict=True) if row >= 0}
            size[[*known]] = [*known.values()]
        self.starts: Ints = np.concatenate([[0], np.cumsum(size)])
        """(N + 1,) the first place of each row."""
        self.total = torch.zeros(len(self), int(trainer.model.config.num_labels) if self.task == "class" else 2)
        """Sums over the visits: log-probabilities of all classes; or log p, and log p beyond the running mean."""
        self.visits, self.recent = torch.zeros(len(self)), torch.zeros(2)
        self.dropped = torch.zeros(len(self.starts) - 1, dtype=torch.bool)
        """(N,) the rows that are left out now."""
        if drop and self.task == "class":
            raise InputError("drop leaves out texts and pairs; for samples with a class give a method, such as robust.")
        for name, usual in PLAIN.items() if drop or method is not None else ():
            if (given := getattr(trainer.args, name, usual[0])) not in usual:
                raise InputError(
                    f"{name} is {given!r}; method= and drop= change the losses nll of SFT, sigmoid of DPO and that of reward models, without "
                    f"further terms. Expected {name}={usual[-1]!r}; or leave method and drop out."
                )
        self.criterion = None if method is None else self._criterion(method, settings)
        self.exchange: Exchange | None = None
        self._attach(rows)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _numbers(self, rows: Any, dataset: Any) -> list[list[int]]:
        """The numbers of the rows that each prepared row holds; -1 where they are not known."""
        if INDEX in rows.column_names:
            return [[int(row)] for row in rows[INDEX]]
        if dataset is None:
            if "seq_lengths" in rows.column_names:
                raise InputError("the trainer packed its rows: give it the data set too, watch(trainer, dataset).")
            kept = getattr(rows, "_indices", None)  # the numbers of rows before a filter or shuffling
            return [[k] for k in (range(len(rows)) if kept is None else kept.column(0).to_pylist())]
        trainer, args = self.trainer, self.trainer.args
        more = [False, getattr(trainer, "_formatting_func", None)] if self.task == "text" else []  # without packing
        before, args.shuffle_dataset = getattr(args, "shuffle_dataset", False), False
        whole = dataset.add_column(INDEX, list(range(len(dataset))))
        whole = trainer._prepare_dataset(whole, trainer.processing_class, args, *more, "train")
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

    def _criterion(self, method: str | Compensated, settings: Mapping[str, Any]) -> Compensated:
        if isinstance(method, str):
            row = find(method)
            if row.needs - {"index", "epochs", "steps"} or "feature" in row.taxonomy.target:
                raise InputError(f"{row.name} needs more than logits, which is all that watch has; choose another.")
            rows = self.task != "text" or self.per == "sequence"
            classes = self.total.shape[1] if self.task == "class" else 2
            sizes = {"num_samples": len(self.starts) - 1 if rows else len(self), "num_classes": classes}
            method = row.make(**sizes, class_counts=[1] * classes, **settings)
        method.record, method.reduction = None, "sum"
        if self.task == "text" and self.per == "sequence" and any(isinstance(m, Statistic) for m in method.modules()):
            raise InputError('this method keeps a mean of each sample, and texts have many tokens; use per="token".')
        return method

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
            seen: list[list[Any]] = [[], []]
            models = [model, *([trainer.ref_model] if getattr(trainer, "ref_model", None) is not None else [])]
            hooks = [
                one.register_forward_hook(lambda _, __, output, k=k: seen[k].append(output))
                for k, one in enumerate(models)
            ]
            try:
                found = loss(model, inputs, *args, **kwargs)
            finally:
                for hook in hooks:
                    hook.remove()
            return self.observe(found, places, *self.logits(inputs, *seen))

        trainer._set_signature_columns_if_needed, trainer.data_collator = set_columns, collated
        trainer.compute_loss = compute_loss
        trainer.add_callback(self)

    # --- a batch ----------------------------------------------------------------------------------------------

    def places(self, numbers: list[list[int]], samples: list[dict[str, Any]], batch: Mapping[str, Any]) -> Tensor:
        """The places of the samples of a batch; for texts one of each token, -1 at padding and at first tokens, which no text precedes."""
        if self.task != "text":
            return torch.tensor([row for (row,) in numbers])
        flat = []
        for rows, sample in zip(numbers, samples, strict=True):
            sizes = sample.get("seq_lengths") or [len(sample["input_ids"])]
            for row, n in zip(rows, sizes, strict=True):
                flat.append(torch.full((n,), -1) if row < 0 else torch.arange(n) + int(self.starts[row]))
                flat[-1][:1] = -1
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
        if self.task == "preference":
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

    def observe(self, loss: Any, places: Tensor, logits: Tensor, target: Tensor) -> Any:
        """Records a batch; returns the trainer's loss, or the compensated one."""
        places = (places[:, 1:] if self.task == "text" else places).to(logits.device)
        with torch.no_grad():
            logp = logits.float().log_softmax(-1)
            kept = (places >= 0) & (target != -100)
            values = (logp[kept] if self.task == "class" else logp[..., 0][kept][:, None]).to(self.total.device)
            here = places[kept].to(self.total.device)
            if self.task != "class":
                now = self._all(torch.tensor([float(values.sum()), len(values), len(self._rows(here).unique())]))
                self.recent = self.recent * math.exp(-float(now[2]) / HORIZON) + now[:2]
                values = torch.cat([values, values - self.recent[0] / self.recent[1].clamp(min=1)], 1)
            self.total.index_add_(0, here, values)
            self.visits.index_add_(0, here, torch.ones(len(here), device=self.visits.device))
        if self.criterion is None and not self.dropped.any():
            return loss
        plain = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none", ignore_index=-100)
        index = places.clamp(min=0)
        rows = self._rows(index)
        used = kept & ~self.dropped.to(rows.device)[rows]
        compensated = plain[used.flatten()].sum()
        if self.criterion is not None:
            index = rows if self.per == "sequence" else index
            labels = torch.where(used, target, -100).flatten()
            compensated = self.criterion.train()(logits.flatten(0, -2), labels, index.flatten())
        total = loss[0] if isinstance(loss, tuple) else loss
        # The trainer's own mean; tokens of unknown rows keep their loss.
        scale = total.detach() / plain.detach().sum().clamp(min=torch.finfo(plain.dtype).tiny)
        total = total + scale * (compensated - plain[kept.flatten()].sum())
        return (total, *loss[1:]) if isinstance(loss, tuple) else total

    def _rows(self, places: Tensor) -> Tensor:
        """The rows that places belong to."""
        return torch.searchsorted(torch.from_numpy(self.starts[1:]).to(places.device), places, right=True)

    # --- the run ----------------------------------------------------------------------------------------------

    def _all(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        value = value.to(self.trainer.args.device, copy=True)
        if dist.is_initialized():
            dist.all_reduce(value)
        return value.cpu()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Continues the record of a checkpoint."""
        if self.drop and state.num_train_epochs <= 1:
            warnings.warn("drop leaves nothing out: it acts after an epoch, and this training has one.", stacklevel=2)
        stored: Any = {}
        if state.global_step > 0:
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER)
            stored = checkpoint.latest(folder)
            if stored is None:
                raise InputError(f"{folder} has no record; resume a watched training, or train again.")
            main = not dist.is_initialized() or dist.get_rank() == 0
            self.recent, self.dropped = stored["recent"], stored["dropped"]
            for own, name in ((self.total, "total"), (self.visits, "visits")):
                own.copy_(stored[name] if main else torch.zeros_like(own))
        if self.criterion is not None:
            self.criterion.to(args.device).start(max(1, state.max_steps * args.gradient_accumulation_steps))
            if stored:
                self.criterion.load_state_dict(stored["criterion"])
            self.exchange = Exchange(self.criterion)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the epoch of the criterion, merges its copies in several processes, and chooses the rows to leave out."""
        if self.exchange is not None:
            self.exchange.end_epoch()
        if self.drop and 2 * state.global_step >= state.max_steps:
            own = self.total, self.visits
            self.total, self.visits = map(self._all, own)
            table = self._table()
            self.total, self.visits = own
            self.dropped = torch.zeros_like(self.dropped)
            self.dropped[table["index"].head(int(self.drop * len(table))).tolist()] = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the record to a checkpoint."""
        if self.exchange is not None:
            self.exchange()
        total, visits = self._all(self.total), self._all(self.visits)
        if args.should_save:
            state_dict = {} if self.criterion is None else {"criterion": self.criterion.state_dict()}
            folder = Path(args.output_dir, f"checkpoint-{state.global_step}", FOLDER)
            checkpoint.save_checkpoint(
                folder, state.global_step,
                {"total": total, "visits": visits, "recent": self.recent, "dropped": self.dropped} | state_dict,
            )  # fmt: skip

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Sums the records of all processes, and writes the list of suspects and the review page to the output folder."""
        self.total, self.visits = self._all(self.total), self._all(self.visits)
        if args.should_save:
            folder = make_folder(Path(args.output_dir, FOLDER))
            write_csv(folder / "suspects.csv", self.suspects())
            self.audit().report(folder / "report.html")

    # --- the result -------------------------------------------------------------------------------------------

    @property
    def losses(self) -> Floats:
        """(M, 2) the mean loss of each token or pair, plain and beyond the running mean; NaN where it was not visited."""
        return -(self.total / self.visits[:, None]).double().numpy()

    def _texts(self) -> dict[int, tuple[Any, NDArray[Any]]]:
        """By row, its tokens and the loss of each beyond the usual one, NaN where it was not learned."""
        tokens: dict[int, list[int]] = {}
        held = zip(self.numbers, self.lengths, self.trainer.train_dataset["input_ids"], strict=True)
        for numbers, sizes, ids in held:
            ends = pairwise(np.cumsum([0, *sizes]))
            tokens |= {row: ids[a:b] for row, (a, b) in zip(numbers, ends, strict=True) if row >= 0}
        losses, flat = self.losses[:, 1], np.zeros(len(self), np.int64)
        for row, ids in tokens.items():
            flat[self.starts[row] : self.starts[row + 1]] = ids
        seen = np.isfinite(losses)
        sums, counts = (np.bincount(flat[seen], weights, int(flat.max()) + 1) for weights in (losses[seen], None))
        beyond = losses - (sums / np.maximum(counts, 1))[flat]
        return {row: (ids, beyond[self.starts[row] : self.starts[row + 1]]) for row, ids in tokens.items()}

    def suspects(self, top: int | None = None) -> pd.DataFrame:
        """Rows, most suspect first: index, score, loss, visits; for texts also the spans of tokens that carry the score, and their texts."""
        if self.task == "class":
            return self.audit().suspects.head(top or len(self))
        table = self._table()
        table = table.head(top or len(table))
        if self.task == "text":
            texts = self._texts()
            spans = [_spans(texts[row][1]) for row in table["index"]]
            parts = (
                " … ".join(self._decode(texts[row][0][first:last]) for first, last in some)
                for row, some in zip(table["index"], spans, strict=True)
            )
            listed = ["; ".join(f"{first}:{last}" for first, last in some) for some in spans]
            table = table.assign(spans=listed, text=list(parts))
        return table

    def _table(self) -> pd.DataFrame:
        """The index, score, loss and visits of texts or pairs, most suspect first."""
        losses, texts = self.losses, self._texts() if self.task == "text" else {}
        seen = [
            (row, slice(a, b)) for row, (a, b) in enumerate(pairwise(self.starts.tolist())) if self.visits[a:b].any()
        ]
        scores = [np.nanmean(texts[row][1] if texts else losses[here, 1]) for row, here in seen]
        more = [(np.nanmean(losses[here, 0]), float(self.visits[here].max())) for _, here in seen]
        rows = [(row, score, *rest) for (row, _), score, rest in zip(seen, scores, more, strict=True)]
        table = pd.DataFrame(rows, columns=["index", "score", "loss", "visits"])
        return table.sort_values("score", ascending=False, kind="stable", ignore_index=True)

    def _decode(self, ids: Any) -> str:
        return str(getattr(self.trainer.processing_class, "decode", str)(ids))

    def audit(self) -> Audit:
        """The suspects as an audit, whose `report` is a review page."""
        title, rows = Path(self.trainer.args.output_dir).name or "the training", self.trainer.train_dataset
        if self.task == "class":
            index = np.flatnonzero(self.visits.numpy() > 0)
            p = (self.total[index] / self.visits[index, None]).softmax(-1).double().numpy()
            name = "labels" if "labels" in rows.column_names else "label"
            given = dict(zip((row for (row,) in self.numbers), rows[name], strict=True))
            found = audit_probabilities(p, np.array([given[row] for row in index.tolist()]), title=title)
            return replace(found, index=index)
        table = self.suspects().sort_values("index", ignore_index=True)
        index, score, zeros = table["index"].to_numpy(), table["score"].to_numpy(), np.zeros(len(table), np.int64)
        if self.task == "preference":
            loss = np.maximum(table["loss"].to_numpy(), 1e-9)
            log_q = np.stack([-loss, np.log(-np.expm1(-loss))], 1)
            both = zip(rows["chosen_ids"], rows["rejected_ids"], strict=True)
            texts = {row: " ⟷ ".join(map(self._decode, ids)) for (row,), ids in zip(self.numbers, both, strict=True)}
        else:
            middle, low = np.quantile(score, [0.5, 0.1587])
            odds = (score - middle) / max(middle - low, 1e-9) - EVEN
            log_q = -np.logaddexp(0, np.stack([odds, -odds], 1))
            texts = {row: self._decode(ids) for row, (ids, _) in self._texts().items()}
        turned = np.arange(len(score)) % 2  # the noise model expects both classes
        verdict = judge(np.where(turned[:, None] == 1, log_q[:, ::-1], log_q), turned, directed=False)
        # Shares that were estimated from the scores of texts were far too low.
        share = verdict.share if self.task == "preference" else Estimate(np.nan, np.nan, np.nan)
        shown = np.array([texts[row] for row in index.tolist()], dtype=object)
        data = Dataset(shown, zeros, ("keep", "drop"), index=index, raw=shown, source=Source(kind="text", title=title))
        return build_audit(data.source, Findings(
            classes=("keep", "drop"), index=index, given=zeros, suggested=zeros + 1, log_odds=verdict.log_odds, p_error=verdict.p_error,
            evidence={"score": score, "loss": table["loss"].to_numpy()}, noise_rate=share, data=data,
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
