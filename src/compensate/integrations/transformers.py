"""Hugging Face: an index column for `datasets`, and a `Trainer` with a criterion."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.data.load import is_hub
from compensate.errors import InputError
from compensate.extras import stand_in
from compensate.integrations import UNEVEN, CriterionHooks, batches_of_steps, loader_length
from compensate.training import checkpoint
from compensate.training.distributed import together

INDEX = "index"
"""Name of the column, and of the entry of a batch."""


def add_index(dataset: Any, column: str = INDEX, places: str | None = None) -> Any:
    """Adds a column with the row number of each sample.

    Call it once, on the whole training set, before shuffling, filtering or splitting. Suspects are reported by this number.

    Args:
        dataset: a `datasets.Dataset`, or a dictionary of them, in which each part is numbered separately.
        column: name of the new column.
        places: a column of lists, such as the labels of tokens. Its entries are then numbered throughout the data set, and
            `num_samples` of a method is their number.

    >>> import datasets
    >>> data = add_index(datasets.Dataset.from_dict({"text": ["good", "bad", "fine"], "label": [1, 0, 1]}))
    >>> data.select([2, 0])["index"][:]
    [2, 0]
    """
    if isinstance(dataset, Mapping) and dataset:
        kind: Any = type(dataset)
        return kind({name: add_index(part, column, places) for name, part in dataset.items()})
    if not is_hub(dataset) or not hasattr(dataset, "add_column"):
        raise InputError(
            f"add_index was given a {type(dataset).__name__}; expected a datasets.Dataset, or a dictionary of them."
        )
    if not hasattr(dataset, "__len__"):
        raise InputError(
            f'the data set is a stream, without fixed numbers. Load it with streaming=False, or number its samples in a column "{column}".'
        )
    numbers: list[Any] = list(range(len(dataset)))
    if places is not None:
        if places not in dataset.column_names:
            raise InputError(f'the data set has no column "{places}"; it has {", ".join(dataset.column_names)}.')
        ends = np.cumsum([len(entries) for entries in dataset[places][:]]).tolist()
        numbers = [list(range(a, b)) for a, b in pairwise([0, *ends])]
    if column not in dataset.column_names:
        return dataset.add_column(column, numbers)
    if places is None and np.array_equal(np.asarray(dataset[column][:]), numbers):
        return dataset
    raise InputError(
        f'the data set has a column "{column}" already, which is not the row number. If it was shuffled or split after numbering, '
        "keep that column. Else choose another name: add_index(dataset, column=...)."
    )


@final
class HubModel(nn.Module):
    r"""A model of the hub in stages, :math:`f = \text{head} \circ \text{features} \circ \text{embed}`, or whole if its last layer is unknown.

    `features` runs the whole model, perhaps wrapped for several devices, and records the input of its last layer; `head` returns the
    output of that layer. With `embed`, feature compensation acts on the word vectors of the inner model.

    Shapes: word vectors (B, T, E), features (B, D), logits (B, C); for tokens (B, D, T) and (B, C, T).
    """

    def __init__(self, model: nn.Module, inner: Any, layer: nn.Linear | None, *, embed: bool) -> None:
        super().__init__()
        self.model = model
        self.outputs: Any = None
        self._inner = [inner]  # in a list: already registered in the model
        self.head = None if layer is None else _Head(self, layer)
        self._inputs: Mapping[str, Any] = {}
        self._z: Tensor | None = None
        self.embed = self._embed if embed else None

    def _embed(self, inputs: Mapping[str, Any]) -> Tensor:
        if "input_ids" not in inputs:
            raise InputError(
                f"feature compensation acts on word vectors, but the batch has {', '.join(inputs)} and no input_ids."
            )
        self._inputs = {name: value for name, value in inputs.items() if name != "input_ids"}
        return self._inner[0].get_input_embeddings()(inputs["input_ids"])

    def padding(self, inputs: Mapping[str, Any]) -> Tensor:
        """(B, T) true at padding."""
        mask = inputs.get("attention_mask")
        return torch.zeros_like(inputs["input_ids"], dtype=torch.bool) if mask is None else mask == 0

    def features(self, e: Any) -> Tensor:
        """(B, D) the input of the last layer."""
        inputs = {**self._inputs, "inputs_embeds": e} if isinstance(e, Tensor) else e
        recorded: list[Tensor] = []
        assert self.head is not None
        handle = self.head.layer.register_forward_pre_hook(lambda layer, args: recorded.append(args[0]))
        try:
            tokens = self(inputs).ndim == 3
        finally:
            handle.remove()
        self._z = recorded[-1].movedim(-1, 1) if tokens else recorded[-1]
        return self._z

    def forward(self, inputs: Mapping[str, Any]) -> Tensor:
        """(B, C) logits."""
        self.outputs = self.model(**inputs)
        return find_logits(self.outputs)


class _Head:
    """The last layer; terms may read its weights."""

    def __init__(self, model: HubModel, layer: nn.Linear) -> None:
        self.model, self.layer = model, layer

    def __call__(self, z: Tensor) -> Tensor:
        logits = find_logits(self.model.outputs)
        if z is self.model._z:
            return logits
        return self.layer(z.movedim(1, -1)).movedim(-1, 1) if logits.ndim == 3 else self.layer(z)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


def find_logits(outputs: Any) -> Tensor:
    """(B, C) the logits of a model's output; (B, C, T) for tokens, with classes second as in torch's losses."""
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"the model returned a {type(outputs).__name__} without logits; expected for example AutoModelForSequenceClassification."
        )
    return logits.movedim(-1, 1) if logits.ndim == 3 else logits


try:
    from transformers import Trainer, TrainerCallback
except ModuleNotFoundError:  # pragma: no cover
    Trainer = stand_in("transformers", "hf")
    TrainerCallback = object

REAL = "compensate_real"
"""Entry of the last batch of an epoch: the number of samples of all processes that are not repetitions."""

FOLDER = "compensate"
"""Folder of the criterion's state in a checkpoint."""


@final
class IndexCollator:
    """Wraps a collator, for example `DataCollatorWithPadding(tokenizer)`, and adds the index to its batches.

    The index is (B,), or (B, T) if each token has a number, padded with -100 on the tokenizer's padding side.

    >>> def stack(samples):
    ...     return {name: torch.tensor([s[name] for s in samples]) for name in samples[0]}
    >>> IndexCollator(stack)([{"input_ids": [1, 2], "index": 7}, {"input_ids": [3, 4], "index": 0}])
    {'input_ids': tensor([[1, 2],
            [3, 4]]), 'index': tensor([7, 0])}
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], Any], column: str = INDEX) -> None:
        self.collator, self.column = collator, column

    def __call__(self, samples: list[Mapping[str, Any]]) -> Any:
        """The batch; evaluation samples need no index."""
        numbers = [s[self.column] for s in samples if self.column in s]
        if 0 < len(numbers) < len(samples):
            raise InputError(
                f'{len(samples) - len(numbers)} of {len(samples)} samples have no "{self.column}"; expected all or none.'
            )
        batch = self.collator([{k: v for k, v in s.items() if k != self.column} for s in samples])
        rows = [torch.as_tensor(number) for number in numbers]
        if all(row.ndim == 0 for row in rows):
            if rows:
                batch[self.column] = torch.stack(rows).long()
            return batch
        length = batch["labels"].shape[1] if "labels" in batch else max(len(row) for row in rows)
        left = getattr(getattr(self.collator, "tokenizer", None), "padding_side", "right") == "left"
        missing = [length - len(row) for row in rows]
        if min(missing) < 0:
            raise InputError(
                f"a sample has {max(len(row) for row in rows)} numbers and its batch {length} tokens; number the tokens after the "
                "tokenizer has cut them: add_index(dataset, places='labels')."
            )
        padded = [F.pad(row, (m, 0) if left else (0, m), value=-100) for row, m in zip(rows, missing, strict=True)]
        batch[self.column] = torch.stack(padded)
        return batch


class CompensationMixin:
    """For a custom trainer: ``class MyTrainer(CompensationMixin, Trainer)``; see :class:`CompensatedTrainer`."""

    loss_is_scaled_for_ga = False  # the loss is a mean over its batch: the trainer divides by the number of batches

    def __init__(
        self, *args: Any, criterion: Compensated, clean: Iterable[Any] | None = None,
        meta_optimizer: torch.optim.Optimizer | None = None, fixed_labels: bool = True, index_column: str = INDEX,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        if self.args.label_smoothing_factor:
            raise InputError(
                f"label_smoothing_factor is {self.args.label_smoothing_factor}; use compensate.methods.label_smoothing(lam=...) instead."
            )
        if self.args.world_size > 1 and not self.accelerator.even_batches:
            raise InputError(UNEVEN)
        if self.compute_loss_func is not None:
            raise InputError(
                "compute_loss_func and criterion were given; the criterion is the loss: leave out the other."
            )
        self.hooks = CriterionHooks(criterion, clean=clean, meta_optimizer=meta_optimizer, fixed_labels=fixed_labels)
        self.index_column = index_column
        self.model_accepts_loss_kwargs = False  # the same for older trainers
        collator: Any = getattr(self, "data_collator")  # noqa: B009 - an attribute of the trainer
        if not isinstance(collator, IndexCollator):
            self.data_collator = IndexCollator(collator, index_column)
        self.add_callback(_Clock(self))

    def __getattr__(self, name: str) -> Any:  # attributes of the trainer
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; is it a Trainer?")

    @property
    def criterion(self) -> Compensated:
        """The criterion, for example for `trainer.criterion.suspects()` after the training."""
        return self.hooks.criterion

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()  # type: ignore[misc]
        # The labels too: the model need not take them.
        missing = {self.index_column, *(self.label_names or ("labels",))} - set(self._signature_columns)
        self._signature_columns.extend(sorted(missing))

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """The batches of an optimizer step; the last one of an epoch gets the number of its real samples."""
        state = self.accelerator.gradient_state
        before = state.active_dataloader
        batches, count = super().get_batch_samples(*args, **kwargs)  # type: ignore[misc]
        # No loader is active after batches were fetched beyond the end of the epoch.
        loader = before if state.active_dataloader is None else state.active_dataloader
        if batches and self.args.world_size > 1 and loader is not None and loader.end_of_dataloader:
            batches[-1][REAL] = loader.remainder
        return batches, count

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The compensated loss of a training batch, the plain one of an evaluation batch."""
        inputs = dict(inputs)
        name = self.label_names[0] if self.label_names else "labels"
        if inputs.get(name) is None:
            raise InputError(f'the batch has {", ".join(inputs)} and no "{name}"; add the labels under that name.')
        target, index, real = inputs.pop(name), inputs.pop(self.index_column, None), inputs.pop(REAL, 0)
        criterion, training = self.criterion.train(model.training), model.training
        self.hooks.index_check.evaluating = not training
        if training and index is None and self.hooks.index_check.num_samples is not None:
            raise InputError(
                f'the training batch has no "{self.index_column}", and this criterion keeps a row per sample. Number the training set '
                "once, compensate.integrations.transformers.add_index(dataset), and keep that column in set_format, map and collator."
            )
        if training and self.args.world_size > 1:
            if criterion.reads_inputs or self.hooks.clean is not None:
                raise InputError(
                    "feature compensation and meta steps need the whole batch; train in one process, or with compensate.training.fit."
                )
            outputs = model(**inputs)
            given = [find_logits(outputs), target, *([] if index is None else [index])]
            if given[0].ndim == 3:  # sentences of the processes may differ in length
                pad, fill = self.accelerator.pad_across_processes, [0, *[criterion.ignore_index] * 2]
                given = [pad(t, dim=t.ndim - 1, pad_index=fill[k]) if t.ndim > 1 else t for k, t in enumerate(given)]
            whole = together(*given)
            # Repeated samples come last in the last batch of an epoch.
            loss = criterion(*(t[:real] for t in whole) if 0 < real < len(whole[0]) else whole)
        elif training:
            labels = getattr(getattr(self.model, "config", None), "num_labels", None)
            linear = [m for m in self.model.modules() if isinstance(m, nn.Linear) and m.out_features == labels]
            view = HubModel(model, self.model, linear[-1] if linear else None, embed=criterion.reads_inputs)
            self.hooks.meta(view, (inputs, target, index), self.optimizer.param_groups[0]["lr"])
            loss = criterion.evaluate(view, inputs, target, index).loss
            outputs = view.outputs
        else:
            outputs = model(**inputs)
            loss = criterion(find_logits(outputs), target)
        return (loss, outputs) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Saves the model and the state of the criterion."""
        super().save_model(output_dir, _internal_call)  # type: ignore[misc]
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir) / FOLDER
            checkpoint.save_checkpoint(folder, int(self.criterion.step), self.hooks.state_dict())

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; a checkpoint to resume from must hold the state of the criterion."""
        from transformers.trainer_utils import get_last_checkpoint

        self.criterion.to(self.args.device)
        folder = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        if folder:  # otherwise the trainer raises the error, or trains anew
            state = checkpoint.latest(Path(str(folder)) / FOLDER)
            if state is None:
                raise InputError(
                    f"the checkpoint {folder} has no folder {FOLDER}: it was written by a trainer without this criterion, whose tables "
                    "would start from zero. Resume from another checkpoint, or train again."
                )
            self.hooks.load_state_dict(state)
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]


class CompensatedTrainer(CompensationMixin, Trainer):
    """The trainer of `transformers`, for any classifier, with a criterion of compensation as its loss.

    Args (in addition to the arguments of `Trainer`):
        criterion: from `compensate.methods`, or a custom composition.
        clean: batches ``(inputs, target)`` of trusted data, for methods with meta steps.
        meta_optimizer: for methods with networks of their own; Adam by default.
        fixed_labels: false if labels change on purpose during the training.
        index_column: the column of the training set with the index, see `add_index`.

    Feature compensation acts on the word vectors of the model, without padding. Evaluation gives the plain loss. Checkpoints hold the
    state of the criterion. Models for tokens take labels (B, T) with -100 at padding, special tokens and further pieces of a word; an
    index (B,) gives each sentence a row, and `add_index(dataset, places="labels")` gives one to each token. Heads that score whole
    sequences (CRF) are not supported. Several labels per text, (B, C), need `base="bce"`.

    >>> import datasets, tempfile, transformers, warnings
    >>> from compensate import methods
    >>> warnings.simplefilter("ignore")
    >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    >>> model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, **sizes))
    >>> rows = {"input_ids": [[1, 5, 2], [1, 7, 2]] * 4, "labels": [0, 1] * 4}
    >>> data = add_index(datasets.Dataset.from_dict(rows))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     args = transformers.TrainingArguments(folder, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")
    ...     criterion = methods.logcomp(num_samples=8, num_classes=2)
    ...     trainer = CompensatedTrainer(model, args, train_dataset=data, criterion=criterion)
    ...     trained = trainer.train()
    {...}
    >>> int(criterion.epoch), int(criterion.step)
    (3, 3)
    """


@final
class _Clock(TrainerCallback):
    """Starts the criterion's clock and ends its epochs."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.epochs = trainer, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        per_epoch = loader_length(kwargs.get("train_dataloader"))
        accumulate, optimizer = args.gradient_accumulation_steps, self.trainer.optimizer
        self.epochs = int((state.epoch or 0.0) + 1e-6)  # a float that counts epochs
        total, done = (batches_of_steps(n, accumulate, per_epoch) for n in (state.max_steps, state.global_step))
        optimizers = [getattr(optimizer, "optimizer", optimizer)]
        self.trainer.hooks.begin(total=total, done=done, epochs=self.epochs, optimizers=optimizers)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.epochs += 1
        self.trainer.hooks.catch_up(self.epochs)
