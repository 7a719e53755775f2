from __future__ import annotations

import numpy as np
import pytest
import torch

from compensate.data import CropFlip, Dataset, Ragged, batches, draws, gather, order
from compensate.data.images import as_images
from compensate.errors import InputError


def texts(n: int = 500) -> Dataset:
    rng = np.random.default_rng(0)
    rows = [rng.integers(2, 50, size=rng.integers(1, 60)) for _ in range(n)]
    return Dataset(Ragged.of(rows), rng.integers(2, size=n), ("a", "b"))


def pictures(n: int = 40) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.integers(256, size=(n, 3, 8, 8), dtype=np.uint8), rng.integers(2, size=n), ("a", "b"))


@pytest.mark.parametrize("data", [texts(), pictures()], ids=["text", "images"])
def test_an_epoch_is_a_partition_and_a_function_of_seed_and_epoch(data):
    one = order(data, 16, seed=3, epoch=2)
    assert sorted(np.concatenate(one)) == list(range(len(data)))
    assert all(np.array_equal(a, b) for a, b in zip(one, order(data, 16, seed=3, epoch=2), strict=True))
    for other in (order(data, 16, seed=4, epoch=2), order(data, 16, seed=3, epoch=3)):
        assert not np.array_equal(np.concatenate(one), np.concatenate(other))
    assert np.array_equal(np.concatenate(order(data, 16, shuffle=False)), np.arange(len(data)))
    full = order(data, 16, drop_last=True)
    assert {len(rows) for rows in full} == {16}
    assert len(full) == len(data) // 16


def test_a_run_resumes_at_batch_k():
    data = pictures()
    whole = list(batches(data, 8, seed=1, epoch=4, augment=CropFlip(2)))
    rest = list(batches(data, 8, seed=1, epoch=4, augment=CropFlip(2), start=3))
    assert len(rest) == len(whole) - 3
    for a, b in zip(whole[3:], rest, strict=True):
        assert all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


def test_augmentation_of_a_sample_does_not_depend_on_its_batch():
    data = pictures()
    drawn = draws(data, seed=1, epoch=0)
    rows = order(data, 8, seed=1)[0]
    x, target, index = gather(data, rows, augment=CropFlip(2), drawn=drawn)
    halves = [gather(data, part, augment=CropFlip(2), drawn=drawn)[0] for part in (rows[:4], rows[4:])]
    assert torch.equal(x, torch.cat(halves))
    assert torch.equal(target, torch.from_numpy(data.target[rows]))
    assert torch.equal(index, torch.from_numpy(data.index[rows]))


def naive(images, drawn, pad, flip):
    out = []
    for image, (a, b, f) in zip(images, drawn, strict=True):
        c, h, w = image.shape
        big = torch.zeros(c, h + 2 * pad, w + 2 * pad, dtype=image.dtype)
        big[:, pad : pad + h, pad : pad + w] = image
        i, j = int(a * (2 * pad + 1)), int(b * (2 * pad + 1))
        part = big[:, i : i + h, j : j + w]
        out.append(part.flip(2) if flip and f < 0.5 else part)
    return torch.stack(out)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("shape", [(16, 3, 8, 8), (5, 1, 6, 9), (1, 2, 1, 1)])
def test_crop_and_flip_equal_a_loop(flip, dtype, shape):
    torch.manual_seed(0)
    images = torch.randint(0, 255, shape).to(dtype)
    drawn = np.random.default_rng(1).random((shape[0], 3))
    got = CropFlip(4, flip)(images, drawn)
    assert torch.equal(got, naive(images, drawn, 4, flip))
    assert got.is_contiguous()
    assert torch.equal(CropFlip(0, False)(images, drawn), images)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: order(pictures(), 0), "at least 1"),
        (
            lambda: next(batches(Dataset(np.array(["a b"], dtype=object), np.array([0]), ("x",)), 2)),
            "array of str.*encode",
        ),
        (lambda: gather(pictures(), np.arange(2), augment=CropFlip()), "drawn="),
        (lambda: CropFlip()(torch.zeros(3, 4), np.zeros((3, 3))), r"\(B, C, H, W\)"),
        (lambda: as_images(np.zeros((2, 3)), "x"), "shape"),
        (lambda: as_images(np.full((2, 3, 3), -1.0), "x"), "undo the normalization"),
    ],
)
def test_bad_input(call, hint):
    with pytest.raises(InputError, match=hint):
        call()


def test_regression_targets_are_floats():
    data = Dataset(np.zeros((4, 2)), np.array([0.5, 1.5, 2.5, np.nan]), ())
    x, target, _ = next(batches(data, 4, shuffle=False))
    assert target.dtype == x.dtype == torch.float32
    assert data.labeled.tolist() == [True, True, True, False]
