from __future__ import annotations

import numpy as np
import pytest
import torch

from compensate.data import CropFlip, Dataset, Ragged, batches, channel_statistics, digits, draws, gather, order
from compensate.data.arrays import as_images
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


def test_text_batches_hold_texts_of_one_length():
    data = texts()
    padding = {}
    for shuffle in (True, False):
        cells = [int((x == 0).sum()) for x, _, _ in batches(data, 16, shuffle=shuffle)]
        padding[shuffle] = sum(cells) / data.x.lengths.sum()
    assert padding[True] < 0.15
    assert padding[False] > 0.5
    for x, target, index in batches(data, 16):
        for row, y, i in zip(x, target, index, strict=True):
            assert row[row > 0].tolist() == data.x[int(i)].tolist()
            assert y == data.target[i]


def test_bytes_become_floats_and_the_index_is_the_source_s():
    data = pictures().subset(np.arange(5, 40))
    x, _, index = next(batches(data, 4, seed=2))
    assert x.dtype == torch.float32
    assert torch.allclose(x, torch.from_numpy(pictures().x[index.numpy()] / 255.0).float())
    assert index.min() >= 5
    assert next(batches(digits(), 4))[0].dtype == torch.float32


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


def test_channel_statistics():
    x = pictures().x
    mean, std = channel_statistics(x)
    assert mean == pytest.approx((x / 255).mean((0, 2, 3)), abs=1e-5)
    assert std == pytest.approx((x / 255).std((0, 2, 3)), abs=1e-5)
    assert channel_statistics(np.zeros((2, 1, 3, 3), np.float32)) == ([0.0], [1.0])


def test_as_images():
    assert as_images(np.zeros((2, 5, 5)), "x").shape == (2, 1, 5, 5)
    assert as_images(np.zeros((2, 3, 5, 5)), "x").shape == (2, 3, 5, 5)
    last = np.random.default_rng(0).random((2, 5, 6, 3))
    assert np.allclose(as_images(last, "x")[1, 2], last[1, :, :, 2])


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
