"""skorch: a scikit-learn classifier of a module and a criterion of compensation."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sized
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, StackDataset, Subset, default_collate

from compensate import methods
from compensate.errors import InputError
from compensate.extras import stand_in
from compensate.integrations import CriterionHooks, loader_length
from compensate.terms.meta import networks

try:
    from skorch import NeuralNetClassifier
    from skorch.dataset import get_len
    from skorch.utils import to_device, to_tensor
except ModuleNotFoundError:  # pragma: no cover
    NeuralNetClassifier = stand_in("skorch", "skorch")


def probabilities(logits: Tensor) -> Tensor:
    """(B, C) the softmax of logits (B, C)."""
    return logits.softmax(-1)


class CompensatedNet(NeuralNetClassifier):
    """skorch's classifier for modules that return logits, with a criterion of compensation.

    Args (in addition to the arguments of `NeuralNetClassifier`):
        criterion: a function that builds a criterion, such as `compensate.methods.logcomp`; each `fit` builds a new one. Its sizes
            come from the data, other arguments from parameters such as ``criterion__lam=0.1``.
        clean: ``(X, y)`` or a data set of trusted samples, for methods with meta steps.
        fixed_labels: false if labels change on purpose between visits of a sample.

    The index of a sample is its row in the `X` (N, ...) given to `fit`, also after `train_split`. Validation gives the plain loss, and
    `predict_proba` the softmax.

    >>> import numpy as np, torch
    >>> net = CompensatedNet(torch.nn.Linear, module__in_features=4, module__out_features=3, max_epochs=2, verbose=0)
    >>> X, y = np.random.default_rng(0).normal(size=(30, 4)).astype("float32"), np.arange(30) % 3
    >>> net.fit(X, y).predict_proba(X).shape
    (30, 3)
    >>> int(net.criterion_.epoch), net.criterion_.record.num_samples
    (2, 30)
    """

    def __init__(
        self, module: Any, *args: Any, criterion: Callable[..., Any] = methods.logcomp, clean: Any = None,
        fixed_labels: bool = True, predict_nonlinearity: Any = probabilities, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(module, *args, criterion=criterion, predict_nonlinearity=predict_nonlinearity, **kwargs)
        self.clean, self.fixed_labels = clean, fixed_labels

    def initialize_criterion(self) -> CompensatedNet:
        """Builds the criterion; missing sizes come from the data of `fit`."""
        given = self.get_params_for("criterion")
        if not isinstance(self.criterion, torch.nn.Module):
            wanted = inspect.signature(self.criterion).parameters
            given = {**{k: v for k, v in getattr(self, "_sizes", {}).items() if k in wanted}, **given}
            required = (k for k, p in wanted.items() if p.default is p.empty and p.kind is p.KEYWORD_ONLY)
            if needed := ", ".join(k for k in required if k not in given):
                raise InputError(
                    f"the criterion needs {needed}: call fit, which knows the data, or write criterion__NAME=..."
                )
        self.criterion_ = self.initialized_instance(self.criterion, given)
        self.hooks_ = CriterionHooks(self.criterion_, fixed_labels=self.fixed_labels)
        return self

    def get_all_learnable_params(self) -> Iterator[tuple[str, Any]]:
        """The parameters of the module, and of the criterion except for meta steps."""
        meta = [t.weight for t in self.criterion_.tables() if t.update == "meta"]
        kept = {id(p) for p in [*meta, *(networks(self.criterion_) if self.clean is not None else ())]}
        return ((name, p) for name, p in super().get_all_learnable_params() if id(p) not in kept)

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> CompensatedNet:
        """See `NeuralNetClassifier.fit`."""
        self._measure(X, y)
        return super().fit(X, y, **fit_params)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **fit_params: Any) -> CompensatedNet:
        """See `NeuralNetClassifier.partial_fit`; it must get the same samples, because new ones have no rows."""
        if not self.initialized_:
            self._measure(X, y)
        return super().partial_fit(X, y, classes=classes, **fit_params)

    def _measure(self, X: Any, y: Any) -> None:
        self.check_data(X, y)
        if isinstance(X, Dataset):
            source_rows(X)  # raises for a stream
        self._sizes: dict[str, Any] = {"num_samples": get_len(X)}
        if hasattr(self, "classes_inferred_") or self.classes is not None:
            self._sizes["num_classes"] = len(self.classes_)
            if y is not None and np.issubdtype(np.asarray(y).dtype, np.integer):
                self._sizes["class_counts"] = np.bincount(np.asarray(y), minlength=len(self.classes_)).tolist()

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **fit_params: Any) -> CompensatedNet:
        """See `NeuralNet.fit_loop`."""
        self._ahead: int | None = self.max_epochs if epochs is None else epochs
        return super().fit_loop(X, y, epochs=epochs, **fit_params)

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Batches; training batches come with the rows of their samples."""
        if not training:
            return super().get_iterator(dataset, training)
        rows: Any = source_rows(dataset)
        loader = super().get_iterator(StackDataset(dataset, rows), training)
        epochs, self._ahead = getattr(self, "_ahead", None), None
        if epochs is None:
            return loader
        if self.clean is not None:
            clean = self.get_dataset(*self.clean) if isinstance(self.clean, tuple) else self.clean
            batch = len(clean) if self.batch_size == -1 else min(self.batch_size, len(clean))
            self.hooks_.clean = DataLoader(clean, batch_size=batch, shuffle=True)
        counted = [epoch.get("train_batch_count", 0) for epoch in self.history]
        size = loader_length(loader)
        total = None if size is None else sum(counted) + epochs * size
        optimizers = [getattr(self, f"{name}_") for name in self._optimizers]
        self.hooks_.begin(total=total, done=sum(counted), epochs=len(counted), optimizers=optimizers)
        return loader

    def run_single_epoch(self, iterator: Any, training: bool, prefix: str, step_fn: Any, **fit_params: Any) -> None:
        """See `NeuralNet.run_single_epoch`; a training batch comes with the index of its samples."""
        batches = self._batches(iterator) if training else iterator
        super().run_single_epoch(batches, training, prefix, step_fn, **fit_params)

    def _batches(self, loader: Any) -> Iterator[Any]:
        for item in loader:
            if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[1], Tensor):
                raise InputError(
                    "the batches of iterator_train come without the rows of their samples; it must pass collate_fn to a DataLoader."
                )
            batch, self._index = item
            yield batch

    def get_params_for(self, prefix: str) -> dict[str, Any]:
        """See `NeuralNet.get_params_for`; the training loader collates batches with their rows."""
        given = super().get_params_for(prefix)
        if prefix == "iterator_train":
            given["collate_fn"] = functools.partial(_collate_with_rows, given.get("collate_fn", default_collate))
        return given

    def on_epoch_end(self, net: Any, *args: Any, **kwargs: Any) -> None:
        """Ends the epoch of the criterion."""
        super().on_epoch_end(net, *args, **kwargs)
        self.hooks_.criterion.end_epoch()

    def train_step_single(self, batch: Any, **fit_params: Any) -> dict[str, Tensor]:
        """Trains on one batch; the criterion runs the model, because it may compensate the input."""
        self._set_training(True)
        self.hooks_.index_check.evaluating = False
        x, target = (to_tensor(part, device=self.device) for part in batch)
        index = to_device(self._index, self.device)
        self.hooks_.meta(self.module_, (x, target, index), self.optimizer_.param_groups[0]["lr"])
        # skorch unpacks inputs by name; a tensor goes to the module itself, with its stages.
        plain = isinstance(x, Tensor) and not fit_params
        model = self.module_ if plain else functools.partial(self.infer, **fit_params)
        s = self.criterion_.evaluate(model, x, target, index)
        s.loss.backward()
        return {"loss": s.loss, "y_pred": s.u}

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Tensor:
        """The plain loss, for validation."""
        self.hooks_.index_check.evaluating = not training
        return self.criterion_(y_pred, to_tensor(y_true, device=self.device))


def _collate_with_rows(collate: Callable[[list[Any]], Any], items: list[tuple[Any, int]]) -> tuple[Any, Tensor]:
    """The batch of a collator and the rows (B,) of its samples."""
    return collate([item for item, _ in items]), torch.tensor([int(row) for _, row in items])


def source_rows(dataset: Any) -> NDArray[np.int64]:
    """(n,) the row of each item of a subset in the whole data set.

    >>> source_rows(Subset(Subset(range(9), [3, 5, 8]), [2, 0]))
    array([8, 3])
    """
    if isinstance(dataset, Subset):
        return source_rows(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if not isinstance(dataset, Sized):
        raise InputError(
            f"the data set is a {type(dataset).__name__} with no length; read it into arrays or a map-style data set first."
        )
    return np.arange(len(dataset))
