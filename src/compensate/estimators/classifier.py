"""Any method of `METHODS` as a scikit-learn classifier."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from compensate.core.criterion import Compensated
from compensate.core.stages import seeded
from compensate.core.statistics import Evidence, Statistic
from compensate.core.tables import Sample
from compensate.data.dataset import generator
from compensate.estimators import common
from compensate.estimators.common import check_parameters, weights
from compensate.methods.composition import find
from compensate.methods.registry import SIZES
from compensate.models.networks import MLP
from compensate.terms.classes import AngularMargin, CosineHead
from compensate.training.distributed import Hardware
from compensate.training.evaluation import Samples, even_batches, predict
from compensate.training.preparation import model_sizes
from compensate.training.step import Learner, make_optimizer, rate
from compensate.training.trainer import EarlyStopping, Metrics, Trainer

if TYPE_CHECKING:
    import pandas as pd

FLOATS = (np.float64, np.float32)

HIDDEN = (128,)
"""Hidden units of the default network."""

MIN_SAMPLES, MIN_PER_FEATURE = 100, 5
"""With fewer samples, in all or for each feature, the default network is linear."""

PER_STEP, MIN_RATE, MAX_RATE, STREAM_RATE = 2.0, 1e-3, 0.1, 0.01
"""Default learning rates of Adam; see `default_rate`."""


def default_rate(optimizer: str, steps: int | None) -> float:
    r"""A learning rate for a training of this many steps: :math:`2 / \mathrm{steps}`, from 0.001 to 0.1; tenfold for SGD.

    In long trainings large steps would fit wrong labels before the compensation does. Chosen on held-out labels of six tables, as given
    and with a fifth of them wrong (`python -m experiments choices`). It is 0.01 on a stream, where the number of steps is unknown.

    >>> [round(default_rate("adam", steps), 4) for steps in (10, 100, 500, 10_000)]
    [0.1, 0.02, 0.004, 0.001]
    """
    rate = STREAM_RATE if steps is None else min(MAX_RATE, max(MIN_RATE, PER_STEP / steps))
    return rate if optimizer == "adam" else 10 * rate


def with_teachers(hyper: Mapping[str, Any], X: Any, classes: np.ndarray, *, stream: bool) -> dict[str, Any]:
    """`hyper` with teachers in the form that methods take: a module, or a tensor with a row for each row of `X`."""
    given = dict(hyper)
    for name in ("teacher", "guess"):
        value = given.get(name)
        if isinstance(value, nn.Module):
            given[name] = copy.deepcopy(value)  # the criterion freezes it and changes its precision
        if value is None or isinstance(value, nn.Module | str):
            continue
        if stream:
            raise ValueError(f"partial_fit does not know its samples in advance: {name!r} must be a torch module.")
        if hasattr(value, "predict_proba"):
            if not np.array_equal(value.classes_, classes):
                raise ValueError(f"{name!r} knows the classes {value.classes_}; expected {classes}.")
            p = np.asarray(value.predict_proba(X), dtype=np.float64)
            value = p if name == "guess" else np.log(np.maximum(p, np.finfo(np.float64).tiny))
        given[name] = torch.as_tensor(np.array(value))
        if len(given[name]) != X.shape[0]:
            raise ValueError(f"{name!r} has {len(value)} rows; expected one for each of {X.shape[0]} samples.")
    return given


@dataclass(eq=False, repr=False)
class CompensatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    r"""A network trained by any method of `METHODS`, as a scikit-learn classifier.

    .. math:: \min_\Theta \frac{1}{\sum_i w_i} \sum_i w_i \bigl[ l(S(f(x_i + \Delta x_i; \Theta) + \Delta u_i) + \Delta p_i,\;
              y_i + \Delta y_i) + \Delta l_i + \mathrm{penalty}_i \bigr]

    where :math:`f` is the module, :math:`w_i` the weight of a sample and the :math:`\Delta` are the terms of the method. Targets may
    be an indicator matrix (n, C) of 0 and 1, for several labels per sample; the loss is then binary cross entropy. Training runs in
    the precision of `X`: give float32 for speed. Sparse input is made dense batch by batch.

    A sample of weight 0 is left out, and a sample of weight 2 counts as two (exactly if all samples fit into one batch). Weights do
    not affect the rows of single samples, and statistics over samples count each sample once.

    `partial_fit` is one pass over its samples. Tables of samples grow with the stream, and keep all samples in memory. A table acts
    from the second visit of a sample: pass the numbers of repeated samples in the stream as `index`. The first call determines
    class counts, the scale of features and the length of schedules (`epochs` calls like the first).

    Args:
        method: a name in `compensate.METHODS`.
        hyper: hyper-parameters of the method, such as ``{"lam": 0.1}``. Methods that learn from clean data take it as
            ``{"clean": (X_clean, y_clean)}``. Teachers (`teacher` of distillation, `guess` of guess_label) may be a fitted classifier
            with `predict_proba` and the same classes, an array with a row per sample, or a torch module of standardized inputs.
        module: called with the numbers of features and outputs, returns a torch module from (B, features) to (B, outputs):
            `compensate.models.MLP`, `compensate.models.probe`, or your own function (a named one, for pickling). Outputs are classes,
            and one more for methods that abstain. Methods that read features need a module with `features` and `head`. By default a
            network with one hidden layer, or a linear one for fewer than 100 samples or 5 per feature.
        epochs: passes over the data in `fit`.
        batch_size: maximum number of samples in a step.
        lr: learning rate of the module; by default :func:`~compensate.estimators.classifier.default_rate` of the number of steps. The
            one of the compensation is in `hyper`.
        optimizer, weight_decay: of the module.
        schedule: of the learning rate over the epochs of `fit`; it is constant in `partial_fit`.
        validation: share of held-out samples, which are not among the suspects; the module of the epoch with the best accuracy on
            their given labels is kept.
        patience: `fit` stops after this many epochs in which the validation accuracy, or without validation the training loss (by
            more than `tol`), has not improved. None never stops: methods with a schedule need all their epochs.
        tol: see `patience`.
        standardize: whether to scale each feature to mean 0 and deviation 1.
        random_state: for initial weights, order and dropout.
        device: of torch, such as "cuda".
        verbose: whether to print a line for each epoch.

    Attributes:
        classes_: (C,).
        module_: the trained torch module, which takes standardized inputs.
        criterion_: the :class:`~compensate.Compensated` criterion with its tables.
        suspects_: DataFrame of all training samples, most suspect first: index (row of `X`), given, suggested, score, flagged; with
            several labels per sample a row for each, a column `label`, and given and suggested are 0 or 1.
        multilabel_: whether the targets were an indicator matrix.
        loss_curve_: the mean training loss of each epoch.
        n_iter_: epochs run.

    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(200, centers=[[0, 0], [6, 6]], random_state=0)
    >>> names = np.array(["cat", "dog"])[y]
    >>> names[:5] = np.where(names[:5] == "cat", "dog", "cat")
    >>> model = CompensatedClassifier(epochs=30, random_state=0).fit(X, names)
    >>> sorted(model.suspects_["index"][:5])
    [0, 1, 2, 3, 4]

    Reference: Yao and Wu, Compensation Learning, 2021, Eqs. (3) to (8); Algorithm 1 for the default method.
    """

    method: str = "logcomp"
    _: KW_ONLY
    hyper: Mapping[str, Any] | None = None
    module: Callable[[int, int], nn.Module] | None = None
    epochs: int = 50
    batch_size: int = 128
    lr: float | None = None
    optimizer: Literal["adam", "sgd"] = "adam"
    weight_decay: float = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    validation: float = 0.0
    patience: int | None = None
    tol: float = 1e-4
    standardize: bool = True
    random_state: Any = None
    device: str = "cpu"
    verbose: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> CompensatedClassifier:
        """Trains on samples `X`, (n, d), dense or sparse, and their classes `y`, (n,), of any type, or (n, C) of 0 and 1."""
        X, y = self._validated(X, y, reset=True)
        weight = weights(sample_weight, X)
        used = np.flatnonzero(weight > 0)
        self.classes_ = np.arange(y.shape[1]) if self.multilabel_ else np.unique(y[used])
        codes = y.astype(np.int64) if self.multilabel_ else np.searchsorted(self.classes_, y)
        self._start(X, codes, weight, used, len(y), stream=False)
        train, held = used, used[:0]
        if self.validation:
            kind = ShuffleSplit if self.multilabel_ else StratifiedShuffleSplit
            split = kind(1, test_size=self.validation, random_state=self._seed())
            train, held = (used[part] for part in next(split.split(used, codes[used])))
        weight = weight / weight[train].mean()  # the unit of the weights must not affect the learning rate
        parts = {"val": self._samples(X, codes, weight, held)} if len(held) else {}
        score = (lambda row: row["val_accuracy"]) if len(held) else (lambda row: -row["train_loss"])
        stopping = EarlyStopping(score, self.patience, 0.0 if len(held) else self.tol)
        kept: dict[str, Tensor] = {}

        def on_epoch(row: Metrics, best: bool) -> None:
            if best and len(held):
                kept.update(copy.deepcopy(self.module_.state_dict()))
            if self.verbose:
                more = f"  validation {row['val_accuracy']:.3f}" if len(held) else ""
                print(f"epoch {row['epoch']}/{self.epochs}  loss {row['train_loss']:.4f}{more}")

        samples = self._samples(X, codes, weight, train)
        self._train(samples, self.epochs, self.schedule, held_out=parts, stopping=stopping, on_epoch=on_epoch)
        if kept:
            self.module_.load_state_dict(kept)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, index: Any = None
    ) -> CompensatedClassifier:
        """One pass over further samples.

        `classes` names all classes of the stream and is needed in the first call. `index`, (n,), numbers the samples in
        the stream from 0; by default all are new. Weights are not normalized; 1 is an ordinary sample.
        """
        first = not hasattr(self, "module_")
        X, y = self._validated(X, y, reset=first)
        known = getattr(self, "classes_", None)
        if known is None and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        if known is None:
            self.classes_ = unique_labels(classes)
        elif classes is not None and not np.array_equal(known, unique_labels(classes)):
            raise ValueError(
                f"classes is {classes!r} and was {known!r} on the first call to partial_fit; leave it out."
            )
        weight, codes = weights(sample_weight, X), self._codes(y)
        used = np.flatnonzero(weight > 0)
        start = 0 if first else self._seen
        numbers = np.arange(start, start + len(y)) if index is None else np.asarray(index)
        if numbers.shape != (len(y),) or numbers.dtype.kind not in "iu" or numbers.min() < 0:
            raise ValueError(f"index must hold one whole number of at least 0 for each of {len(y)} samples.")
        numbers = numbers.astype(np.int64)
        if first:
            self._start(X, codes, weight, used, int(numbers.max()) + 1, stream=True)
        else:
            self._grow(int(numbers.max()) + 1)
        self._train(self._samples(X, codes, weight, used, numbers), 1, "constant")
        return self

    def _validated(self, X: Any, y: Any, *, reset: bool) -> tuple[Any, np.ndarray]:
        """Samples and targets as arrays; sets `multilabel_`.

        Raises if a parameter is not sensible, or if neither the data nor `hyper` gives something that the method needs.
        """
        if not isinstance(self.method, str):
            raise ValueError(f"method must be the name of a method. Got {self.method!r} instead.")
        if self.hyper is not None and not isinstance(self.hyper, Mapping):
            raise ValueError(f"hyper must be a dict of hyper-parameters or None. Got {self.hyper!r} instead.")
        if self.module is not None and (not callable(self.module) or isinstance(self.module, nn.Module)):
            raise ValueError(
                "module must be a callable that makes a module from the numbers of features and outputs, such as "
                f"compensate.models.MLP; every fit makes a new one. Got {self.module!r} instead."
            )
        check_parameters(self)
        row, hyper = find(self.method), self.hyper or {}
        row.check(name for name in hyper if name != "clean" or "clean" not in row.needs)
        if "clean" in row.needs and "clean" not in hyper:
            raise ValueError(
                f'method "{row.name}" learns from clean data: give trusted samples as hyper={{"clean": (X_clean, y_clean)}}.'
            )
        if "group" in row.needs:
            raise ValueError(f'method "{row.name}" needs the group of each sample, which a classifier does not have.')
        wanted = inspect.signature(row.build).parameters
        for name, parameter in wanted.items():
            if parameter.default is parameter.empty and name not in SIZES and name not in hyper:
                raise ValueError(
                    f'method "{row.name}" learns from a teacher: give hyper={{"{name}": ...}}, a fitted classifier with '
                    "predict_proba, a torch module, or an array with one row per sample."
                    if "teacher" in row.needs
                    else f'method "{row.name}" needs a value for {name!r}: give hyper={{"{name}": ...}}.'
                )
        if sparse.issparse(y):
            y = cast(Any, y).toarray()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=FLOATS, multi_output=True, reset=reset)
        check_classification_targets(y)
        several = type_of_target(y) == "multilabel-indicator"
        if not several:
            y = column_or_1d(y, warn=True)
        if reset:
            self.multilabel_ = several
        elif several != self.multilabel_:
            raise ValueError(
                "y has several labels per sample in some calls and one class in others; give all in one form."
            )
        if several and "base" not in wanted:
            row.build(base="bce")  # raises, and names the methods that have this form
        return X, y

    def _codes(self, y: np.ndarray) -> np.ndarray:
        """Classes as numbers (n,), or several labels (n, C)."""
        if self.multilabel_:
            if y.shape[1] != len(self.classes_):
                raise ValueError(
                    f"y has {y.shape[1]} labels; expected one column for each of {len(self.classes_)} classes."
                )
            return y.astype(np.int64)
        if len(unknown := np.setdiff1d(y, self.classes_)):
            raise ValueError(f"y contains labels {unknown} that are not among the classes {self.classes_}.")
        return np.searchsorted(self.classes_, y)

    def _seed(self) -> int:
        return int(self._random.integers(2**31))

    def _start(
        self, X: Any, codes: np.ndarray, weight: np.ndarray, used: np.ndarray, num_samples: int, *, stream: bool
    ) -> None:
        """A new module, criterion and optimizer."""
        if len(self.classes_) < 2 and not self.multilabel_:
            raise ValueError("The number of classes has to be greater than one; got 1 class")
        row, device, features = find(self.method), torch.device(self.device), X.shape[1]
        self._random = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        self._dtype = torch.float32 if X.dtype == np.float32 else torch.float64
        self._mean, self._scale = np.zeros(features), np.ones(features)
        if self.standardize:
            scaler = StandardScaler(with_mean=not sparse.issparse(X)).fit(X[used], sample_weight=weight[used])
            self._mean, self._scale = scaler.mean_, scaler.scale_
        hyper = with_teachers(self.hyper or {}, X, self.classes_, stream=stream)
        self._clean = None
        if "clean" in hyper:
            X_clean, y_clean = validate_data(self, *hyper.pop("clean"), accept_sparse="csr", dtype=FLOATS, reset=False)
            self._clean = X_clean, self._codes(y_clean)
        outputs = len(self.classes_) + row.extra_outputs
        steps = self.epochs * -(-len(used) // self.batch_size)
        self._lr = default_rate(self.optimizer, None if stream else steps) if self.lr is None else self.lr
        if self.multilabel_:
            # The share of a label is its count over all samples, between 0 and 1.
            counts = np.clip(weight[used] @ codes[used] / weight[used].mean(), 1, max(1, len(used) - 1))
        else:
            counts = np.bincount(codes[used], weight[used], len(self.classes_))
        with torch.enable_grad(), seeded(self._seed(), device):
            few = len(used) < max(MIN_SAMPLES, MIN_PER_FEATURE * features)
            make = self.module or partial(MLP, hidden=() if few else HIDDEN)
            module = make(features, outputs).to(device, self._dtype)
            sizes = model_sizes(module, self._batch(X, used[:2]).to(device))
            sizes |= {"num_classes": len(self.classes_), "batch_size": self.batch_size}
            self._arguments = {**sizes, "class_counts": np.maximum(counts, 1 if stream else 0).tolist(), **hyper}
            criterion = self._criterion(num_samples)
            scales = [m.scale for m in criterion.modules() if isinstance(m, AngularMargin)]
            if self.module is None and scales:  # angular margins need cosines
                head = cast(nn.Linear, module.head)
                module.head = CosineHead(head.in_features, head.out_features, scales[0]).to(head.weight)
            make_one = partial(make_optimizer, self.optimizer, lr=self._lr, weight_decay=self.weight_decay)
            needs = row.needs if self._clean is not None else row.needs - {"clean"}
            self._learner = Learner(module, criterion, make_one, needs=needs, hardware=Hardware(device))
        criterion.start(steps)
        self.module_, self.criterion_ = module, criterion
        self._given, self._seen = np.full((num_samples, *codes.shape[1:]), -1), num_samples
        self.loss_curve_: list[float] = []
        self.n_iter_ = 0

    def _grow(self, needed: int) -> None:
        """Makes room for this many samples, by doubling; rows of known samples are kept, others stay new."""
        self._seen = max(self._seen, needed)
        before = len(self._given)
        if needed <= before:
            return
        size = max(needed, 2 * before)
        self._given = np.concatenate([self._given, np.full((size - before, *self._given.shape[1:]), -1)])
        old = self.criterion_
        with torch.enable_grad(), seeded(self._seed(), torch.device(self.device)):
            self.criterion_ = self._criterion(size)
        fresh = dict(self.criterion_.named_modules())
        with torch.no_grad():
            for name, module in old.named_modules():
                for key, value in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                    target = getattr(fresh[name], key)
                    rows = isinstance(module, Statistic) and module.merges.get(key) == "rows"
                    if target.shape == value.shape:
                        target.copy_(value)
                    elif isinstance(module, Sample) or rows:
                        target[: len(value)] = value
        self._learner.adopt(self.criterion_)

    def _criterion(self, num_samples: int) -> Compensated:
        """The criterion in the precision of the module, with a record of each sample."""
        base = {"base": "bce"} if self.multilabel_ else {}
        criterion = find(self.method).make(**self._arguments, **base, num_samples=num_samples)
        if criterion.record is None:
            size: dict[str, Any] = {"num_labels" if self.multilabel_ else "num_classes": len(self.classes_)}
            criterion.record = Evidence(num_samples, score="margin", **size)
        return criterion.to(self.device, self._dtype)

    def _batch(self, X: Any, rows: Any) -> Tensor:
        """(B, d) these rows of `X`, dense and standardized."""
        x = X[rows]
        x = x if isinstance(x, np.ndarray) else x.toarray()
        return torch.from_numpy((x - self._mean) / self._scale).to(self._dtype)

    def _samples(
        self, X: Any, codes: np.ndarray, weight: np.ndarray, rows: np.ndarray, numbers: np.ndarray | None = None
    ) -> Samples:
        """Some rows of `X`, with their numbers in the stream."""
        unit = bool((weight[rows] == 1).all())
        numbers = np.arange(len(codes)) if numbers is None else numbers
        given = codes, len(self.classes_), numbers, None if unit else weight
        return Samples(lambda some, _: self._batch(X, some), *given).subset(rows)

    def _train(self, samples: Samples, epochs: int, schedule: str, **options: Any) -> None:
        """Trains on the samples, with the options of `Trainer`."""
        self._given[samples.index] = samples.labels
        seed, size = self._seed(), self.batch_size

        def clean(step: int) -> tuple[Tensor, Tensor]:
            assert self._clean is not None
            X, codes = self._clean
            rows = generator(seed, "clean", step).permutation(len(codes))[:size]
            return self._batch(X, rows), torch.from_numpy(codes[rows])

        with torch.enable_grad(), seeded(seed, torch.device(self.device)):
            trainer = Trainer(
                self._learner, samples, epochs=epochs,
                order=lambda epoch: even_batches(len(samples), size, seed=seed, epoch=epoch),
                rate=partial(rate, self._lr, schedule=schedule), clean=clean, **options,
            )  # fmt: skip
            trainer.run()
        self._learner.train(False)
        self.loss_curve_ += [row["train_loss"] for row in trainer.history]
        self.n_iter_ = len(self.loss_curve_)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, C) the probability of each class, in the order of `classes_`; with several labels per sample, of each label."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=FLOATS, reset=False)
        unused = np.zeros(X.shape[0], np.int64)
        samples = Samples(lambda rows, _: self._batch(X, rows), labels=unused, num_classes=len(self.classes_))
        logits = predict(self.module_, samples, device=self.device).double()
        return (logits.sigmoid() if self.multilabel_ else logits.softmax(-1)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """(n,) the likeliest class of each row of `X`; with several labels per sample (n, C), 1 above a probability of one half."""
        p = self.predict_proba(X)
        return (p > 0.5).astype(int) if self.multilabel_ else self.classes_[p.argmax(1)]

    @property
    def suspects_(self) -> pd.DataFrame:
        """All samples trained on, most suspect first; see :meth:`compensate.core.statistics.Evidence.suspects`."""
        import pandas as pd

        check_is_fitted(self)
        assert self.criterion_.record is not None
        suspects = self.criterion_.record.suspects()
        names = ("index", "suggested", "score", "flagged")
        index, suggested, score, flagged = (getattr(suspects, name).cpu().numpy() for name in names)
        columns = {"index": index}
        if suspects.label is None:
            columns |= {"given": self.classes_[self._given[index]], "suggested": self.classes_[suggested]}
        else:
            label = suspects.label.cpu().numpy()
            columns |= {"label": self.classes_[label], "given": self._given[index, label], "suggested": suggested}
        return pd.DataFrame(columns | {"score": score, "flagged": flagged})

    def plot(self, ax: Any = None) -> Any:
        """A histogram of the scores of the training samples, flagged and others."""
        suspects = self.suspects_
        flagged = suspects["flagged"].to_numpy()
        ax = common.axes(ax, f"Suspects: {np.mean(flagged):.1%} of the labels are flagged")
        edges = np.histogram_bin_edges(suspects["score"], 40)
        for which, color, name in ((~flagged, common.color(0), "others"), (flagged, common.OUTLIER, "flagged")):
            ax.hist(suspects["score"][which], edges, color=color, alpha=0.8, label=f"{name} ({which.sum()})")
        ax.set(xlabel="score, larger is more suspect", ylabel="samples")
        common.legend(ax)
        return ax
