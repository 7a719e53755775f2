"""Every way of keeping rows against the plain one, a full array."""

from __future__ import annotations

import copy
import errno
import logging
import os
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from compensate import Compensated
from compensate.core import stores
from compensate.core.stores import Mapped, Sparse, Spec, choose, pack_numbers, unpack_numbers
from compensate.errors import InputError
from compensate.methods import logcomp
from compensate.terms import L1, L2, Sample
from compensate.training import Config, checkpoint, fit

KINDS = ["float32", "float16", "bfloat16"]
WIDTHS = [1, 2, 3, 10, 100, 300]


def rounded(rows: np.ndarray, kind: str) -> np.ndarray:
    """What torch makes of these numbers in this type."""
    return torch.from_numpy(rows).to(getattr(torch, kind)).float().numpy()


def some_rows(rng: np.random.Generator, n: int, width: int, share: float) -> np.ndarray:
    rows = rng.standard_normal((n, width)) * (rng.random((n, width)) < share)
    return rows.astype(np.float32)


def walk(store, kind: str, seed: int, visits: list[tuple[float, float]]) -> np.ndarray:
    """Writes to the store and to a full array alike, comparing what is read on the way; returns the array."""
    rng = np.random.default_rng(seed)
    full = np.zeros((store.num_rows, store.width), np.float32)
    for size, share in visits:
        keys = rng.permutation(store.num_rows)[: round(size * store.num_rows)]
        rows = some_rows(rng, len(keys), store.width, share)
        store.write(keys, rows)
        full[keys] = rounded(rows, kind)
        look = rng.integers(store.num_rows, size=20)
        np.testing.assert_array_equal(store.read(look), full[look])
    np.testing.assert_array_equal(store.read(np.arange(store.num_rows)), full)
    assert store.filled == (full != 0).any(1).sum()
    return full


VISITS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.1, 0.4, 1.0])), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(WIDTHS), st.integers(0, 2**30), VISITS)
def test_sparse_rows_are_those_of_a_full_array(kind, width, seed, visits):
    store = Sparse(97, width, kind)
    full = walk(store, kind, seed, visits)
    packed = store.pack()
    np.testing.assert_array_equal(packed.rows, np.flatnonzero((full != 0).any(1)))
    np.testing.assert_array_equal(packed.counts, (full != 0).sum(1)[packed.rows])
    np.testing.assert_array_equal(packed.columns, np.nonzero(full)[1])
    np.testing.assert_array_equal(packed.values, full[np.nonzero(full)])
    other = Sparse(97, width, kind)
    other.put(packed)
    np.testing.assert_array_equal(other.read(np.arange(97)), full)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from([1, 10, 100]), st.integers(0, 2**30), VISITS)
def test_mapped_rows_are_those_of_a_full_array_and_outlive_the_store(tmp_path_factory, kind, width, seed, visits):
    path = tmp_path_factory.mktemp("rows") / "table"
    store = Mapped(97, width, path, kind)
    full = walk(store, kind, seed, visits)
    store.close()
    again = Mapped(97, width, path, kind)
    np.testing.assert_array_equal(again.read(np.arange(97)), full)
    np.testing.assert_array_equal(again.pack().values, full[np.nonzero(full)])
    again.clear()
    assert again.filled == 0
    assert not again.read(np.arange(97)).any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1e-8, -1e-40, 3e38]), min_size=1))
def test_numbers_are_rounded_as_torch_rounds_them(values):
    rows = np.array(values, np.float32)
    for kind in KINDS:
        expected = rounded(rows, kind)
        largest = torch.finfo(getattr(torch, kind)).max
        np.testing.assert_array_equal(
            unpack_numbers(pack_numbers(rows, kind), kind), np.clip(expected, -largest, largest)
        )


def test_a_row_that_widens_and_narrows_gives_its_room_back():
    store, width, keys = Sparse(4000, 100), 100, np.arange(4000)
    empty = store.nbytes
    for entries in (1, 2, 3, 5, 17, 63, 64, 65, 100, 7, 1):
        rows = np.zeros((4000, width), np.float32)
        rows[:, :entries] = 1 + np.arange(entries)
        store.write(keys, rows)
        np.testing.assert_array_equal(store.read(keys[::-1]), rows[::-1])
        needed = 4000 * (entries * 5 + 14)
        assert needed <= store.nbytes - empty <= 1.4 * needed + 2**16
    store.write(keys, np.zeros((4000, width), np.float32))
    assert store.filled == 0
    assert store.nbytes < empty + 2**17
    store.clear()
    assert store.nbytes == empty


# tables
def tables(tmp_path, n: int, *shape: int, dtype: str = "float32", **settings) -> dict[str, Sample]:
    stores = {"dense": "dense", "sparse": "sparse", "mapped": tmp_path / "table"}
    return {name: Sample(n, *shape, store=f"{store}:{dtype}", **settings) for name, store in stores.items()}


def trained(table: Sample, steps: int = 30, seed: int = 0, record=None) -> tuple[list[float], Compensated]:
    """Losses and criterion of a small training with repeated indices and a sample that is ignored."""
    torch.manual_seed(seed)
    n, c = table.shape
    x, y = torch.randn(n, 5), torch.randint(c, (n,))
    model = nn.Linear(5, c)
    criterion = Compensated(logit=table)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(steps):
        i = torch.randint(n, (16,))
        target = y[i].clone()
        target[0] = -100
        loss = criterion(model(x[i]), target, i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, criterion


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("update", ["prox", "subgradient"])
def test_all_stores_train_alike_bit_for_bit(tmp_path, dtype, update):
    runs = {}
    for name, table in tables(tmp_path, 60, 7, penalty=L1(0.05), update=update, dtype=dtype).items():
        losses, _ = trained(table)
        runs[name] = (losses, table.dense().float())
    for name in ("sparse", "mapped"):
        assert runs[name][0] == runs["dense"][0]
        assert torch.equal(runs[name][1], runs["dense"][1])
    assert runs["dense"][1].abs().sum() > 1
    if update == "prox":
        assert (runs["dense"][1] == 0).any()


def test_a_table_of_16_bits_takes_half_and_ends_near_that_of_32():
    tables = {dtype: Sample(60, 7, penalty=L1(0.05), store=f"sparse:{dtype}") for dtype in KINDS}
    rows = {dtype: (trained(table), table.dense())[1] for dtype, table in tables.items()}
    assert torch.allclose(rows["float16"], rows["float32"], atol=5e-3)
    assert torch.allclose(rows["bfloat16"], rows["float32"], atol=5e-2)
    assert not torch.equal(rows["float16"], rows["float32"])
    dense = [Sample(1000, 7, penalty=L1(0.05), store=f"dense:{dtype}").nbytes for dtype in KINDS]
    assert dense == [28_000, 14_000, 14_000]


@pytest.mark.parametrize("first", ["dense", "sparse", "mapped"])
@pytest.mark.parametrize("second", ["dense", "sparse", "mapped"])
def test_a_checkpoint_of_one_store_is_read_by_any_other(tmp_path, first, second):
    def build(folder: str) -> Compensated:
        (tmp_path / folder).mkdir()
        return Compensated(logit=tables(tmp_path / folder, 60, 7, penalty=L1(0.05))[first if folder == "a" else second])

    criterion, other = build("a"), build("b")
    trained(next(criterion.tables()))
    checkpoint.save_checkpoint(tmp_path / "run", 3, {"criterion": criterion.state_dict()})
    trained(next(other.tables()), seed=1)  # rows that the checkpoint does not have must go
    found = checkpoint.latest(tmp_path / "run")
    assert found is not None
    other.load_state_dict(found["criterion"])
    assert torch.equal(next(other.tables()).dense(), next(criterion.tables()).dense())


def test_a_state_that_does_not_fit_is_refused():
    small, large = (Compensated(logit=Sample(n, 3, penalty=L1(0.1), store="sparse")) for n in (4, 9))
    large_table = next(large.tables())
    large_table.write(torch.tensor([8]), torch.ones(1, 3))
    with pytest.raises(RuntimeError, match=r"not of a table of 4 x 3"):
        small.load_state_dict(large.state_dict())
    dense = Compensated(logit=Sample(9, 3, penalty=L1(0.1), store="dense"))
    with pytest.raises(RuntimeError, match=r"weight has shape \(9, 3\); this table is \(4, 3\)"):
        small.load_state_dict(dense.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        small.load_state_dict({k: v for k, v in small.state_dict().items() if "columns" not in k})


@pytest.mark.parametrize("store", ["sparse", "mapped"])
def test_copies_go_their_own_ways(tmp_path, store):
    table = tables(tmp_path, 20, 3, penalty=L1(0.05))[store]
    table.write(torch.tensor([2]), torch.ones(1, 3))
    other = copy.deepcopy(table)
    assert torch.equal(other.dense(), table.dense())
    other.write(torch.tensor([2, 5]), torch.zeros(2, 3))
    assert table.dense()[2].tolist() == [1, 1, 1]
    files = sorted(p.name for p in tmp_path.iterdir())
    del other
    assert sorted(p.name for p in tmp_path.iterdir()) == [n for n in files if "copy" not in n]
    if store == "sparse":
        assert torch.equal(pickle.loads(pickle.dumps(table)).dense(), table.dense())


def test_rows_follow_the_type_of_the_model():
    criterion = logcomp(num_samples=5, num_classes=3, table="sparse").double()
    loss = criterion(
        torch.zeros(2, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1]), torch.tensor([4, 2])
    )
    assert loss.dtype == torch.float64
    assert next(criterion.tables()).gather(torch.tensor([4])).dtype == torch.float64
    meta = copy.deepcopy(criterion).to("meta")
    assert next(meta.tables()).store.filled == 2  # rows stay where they are


def test_runs_are_alike_and_resumed_exactly_whatever_keeps_the_rows(tmp_path):
    def run(folder: str | None = None, resume: bool = False, stop: bool = False, **hyper):
        steps = []

        def keep(s) -> None:
            steps.append(s)
            if stop and len(steps) == 15:
                raise KeyboardInterrupt

        config = Config(
            data="digits", limit=300, epochs=3, batch_size=32, model="mlp", model_options={"hidden": [16]},
            method="logcomp", noise="pair:0.3", hyper=hyper,
        )  # fmt: skip
        place = None if folder is None else tmp_path / folder
        result = fit(config, folder=place, resume=resume, every=5, on_step=keep)
        return result.model.state_dict(), next(result.criterion.tables()).dense()

    expected = run(table="dense")
    assert expected[1].any()
    for name, table in {"sparse": "sparse", "mapped": str(tmp_path / "rows")}.items():
        with pytest.raises(KeyboardInterrupt):
            run(name, stop=True, table=table)
        # The last finds the file of the first.
        for found in (run(name, resume=True, table=table), run(table=table)):
            assert torch.equal(found[1], expected[1])
            assert all(torch.equal(value, expected[0][name]) for name, value in found[0].items())


# the choice
def test_auto_is_dense_while_it_is_small_and_says_when_it_is_not(caplog):
    stores._logged.clear()
    with caplog.at_level(logging.WARNING, "compensate"):
        assert choose(Spec("auto"), 50_000, (1000,), free=2**40) is None
        assert not caplog.records
        for _ in range(2):
            assert isinstance(choose(Spec("auto"), 10_000_000, (1000,), free=2**40), Sparse)
        assert isinstance(choose(Spec("auto"), 50_000, (1000,), free=10**8), Sparse)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "10,000,000 x 1,000 is kept sparse: 40 MB" in said[0]
    assert "instead of 40.0 GB" in said[0]
    assert choose(Spec("auto"), 10_000_000, (1000,), sparse=False, free=2**40) is None


def test_what_cannot_fit_is_refused_with_its_size_and_a_way_out():
    with pytest.raises(
        InputError, match=r"40,000,000,000 bytes \(40\.0 GB\), and 1,000,000,000 are free.*sparse.*file"
    ):
        choose(Spec("dense"), 10_000_000, (1000,), free=10**9)
    with pytest.raises(InputError, match="Category"):
        choose(Spec("auto"), 10_000_000, (1000,), movable=False, free=10**9)
    with pytest.raises(InputError, match=r"is free|are free"):
        Sample(10**9, 10**5, penalty=L2(0.1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"store": "tiny"}, '(a file has a suffix, such as "rows.tab"); known: auto, dense, sparse'),
        ({"store": "spare"}, 'did you mean "sparse"?'),
        ({"store": "sparse", "update": "meta"}, "not by an optimizer or a meta step"),
        ({"store": "sparse", "init": 1.0}, "rows that start at zero"),
        ({"store": "rows.tab", "update": "manual"}, "not by an optimizer or a meta step"),
        ({"store": "sparse:int8"}, '"int8" is not a type that a table keeps; known: float32, float16, bfloat16'),
        ({"store": "sparse:float61"}, 'did you mean "float16"?'),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Sample(5, 3, penalty=L1(0.1), **settings)


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        Mapped(5, 3, tmp_path / "missing" / "table")
    for content in (b"hello", bytes(4096)):  # a text; a table whose header had not been written yet
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(InputError, match="is not a table"):
            Mapped(5, 3, tmp_path / "text")
        assert (tmp_path / "text").read_bytes() == content
    first = Mapped(5, 3, tmp_path / "table")
    with pytest.raises(InputError, match="in use by another table"):
        Mapped(5, 3, tmp_path / "table")
    first.close()
    with pytest.raises(InputError, match="holds a table of 5 x 3 float32, not of 6 x 3 float32"):
        Mapped(6, 3, tmp_path / "table")


def test_a_record_can_be_lean_or_left_out():
    torch.manual_seed(0)
    u, y, i = torch.randn(40, 4), torch.randint(4, (40,)), torch.arange(40)
    i[1] = i[0] = 3  # a sample that comes several times in a batch counts several times
    full, lean, none = (logcomp(num_samples=40, num_classes=4, record=kind) for kind in ("full", "lean", "none"))
    for step in range(6):
        for criterion in (full, lean, none):
            criterion(u.roll(step, 1) + u, y, i)
    a, b = full.suspects(), lean.suspects()
    assert len(a) == 38
    assert torch.equal(a.index[:5], b.index[:5])
    assert torch.equal(full.record.visits, lean.record.visits.float())
    assert torch.equal(full.record.guess, lean.record.guess.int())
    assert full.nbytes - none.nbytes == 40 * 24
    assert lean.nbytes - none.nbytes == 40 * 8
    assert torch.allclose(full.record.mean("margin"), lean.record.mean("margin"), rtol=3e-3, atol=1e-3, equal_nan=True)
    with pytest.raises(InputError, match="lean record keeps margin"):
        lean.record.mean("loss")
    with pytest.raises(InputError, match="keeps no record"):
        none.suspects()
    with pytest.raises(InputError, match='record is "some"'):
        logcomp(num_samples=4, num_classes=4, record="some")


def test_a_mapped_table_has_its_room_before_it_is_mapped(tmp_path):
    """Else a full disk would end the process by a signal at a later write."""
    Mapped(1000, 64, tmp_path / "table").close()
    found = (tmp_path / "table").stat()
    assert found.st_size > 1000 * 64 * 4
    assert found.st_blocks * 512 >= found.st_size


def test_a_full_disk_is_found_when_a_mapped_table_is_made(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"No space left on device.*on a disk with enough room"):
        Sample(1000, 64, penalty=L1(0.1), store=tmp_path / "table")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("change", [-4096, -1, 4096])
def test_a_mapped_table_of_another_length_is_refused(tmp_path, change):
    path = tmp_path / "table"
    store = Mapped(1000, 64, path)
    store.write(np.array([3]), np.ones((1, 64), np.float32))
    store.close()
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(InputError, match="the file was cut or written over"):
        Mapped(1000, 64, path)
