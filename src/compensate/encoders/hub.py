"""Saved models of `transformers`, `sentence-transformers`, `timm` and `open_clip`, from a folder or from the hub.

A hub model is first brought to a folder, so that there is one way to load it. Nothing from outside is ever executed: weights
are read from safetensors files alone, and a model that needs code of its own (``trust_remote_code``) is refused.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compensate.encoders.image import SIDE, ImageEncoder
from compensate.encoders.text import EncodedBatch, TextEncoder, mean_pooling
from compensate.errors import InputError, nearest

READ = (".json", ".safetensors", ".txt", ".model", ".md")
"""Files of a model that are looked at: settings, weights, vocabularies and the license. No code, no pickles."""

LONGEST = 512
"""Word pieces of a chunk where a tokenizer states no limit."""

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""For models that do not say how their images are to be normalized."""

RunEncoder = Callable[[Sequence[Any], int | None], Iterator[EncodedBatch]]
"""A loaded encoder: from items and a batch size (or none) to embeddings, some items at a time."""


@dataclass(frozen=True)
class Saved:
    """A saved model: its license as its card states it, and how to load it."""

    license: str
    load: Callable[[torch.device], RunEncoder]


def ready(kind: str) -> bool:
    """Whether the library that packaged encoders of this kind need is installed."""
    return kind != "text" or importlib.util.find_spec("transformers") is not None


def download(name: str, known: Sequence[str]) -> tuple[Path, str]:
    """The folder of a hub model in the hub's own cache, fetched if it is not there, and its revision.

    ``owner/model@revision`` pins a commit, a tag or a branch.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f'"{name}" is no installed encoder ({nearest(name, known)}), and models of the Hugging Face hub need '
            'transformers: pip install "compensate[encoders]".'
        )
    import huggingface_hub

    try:
        repository, _, revision = name.partition("@")
        folder = huggingface_hub.snapshot_download(  # nosec B615: the user pins it if wanted; only data is fetched
            repository, revision=revision or None, allow_patterns=[f"*{suffix}" for suffix in READ]
        )
    except Exception as error:  # of the network, of the hub and of its cache: a dozen classes
        raise InputError(
            f'the encoder "{name}" is not installed here and cannot be fetched from the Hugging Face hub '
            f"({_first_line(error)}). Give the folder of a saved model, or an installed encoder: {nearest(name, known)}"
        ) from error
    return Path(folder), Path(folder).name


def saved_model(folder: Path, kind: str) -> Saved:
    """How to load the model in a folder, by the files that its library writes."""
    if not any(folder.rglob("*.safetensors")):
        raise InputError(
            f"{folder} holds no .safetensors file. Weights in other formats can run code when they are read; save the "
            "model again with model.save_pretrained(folder)."
        )
    config = _json(folder / "config.json")
    if (folder / "modules.json").is_file():
        form, loaders = "sentence-transformers", {"text": sentence_transformers_text}
    elif (folder / "open_clip_config.json").is_file():
        form, loaders = "open_clip", {"text": open_clip_text, "image": open_clip_image}
    elif "architecture" in config:
        form, loaders = "timm", {"image": timm_image}
    elif "model_type" in config:
        form, loaders = "transformers", {"text": transformers_text, "image": transformers_image}
    else:
        raise InputError(
            f"{folder} is no saved model that is known; expected the config.json of transformers or timm, modules.json of "
            "sentence-transformers, or open_clip_config.json."
        )
    if "auto_map" in config:
        raise InputError(f"the model in {folder} needs code of its own, which is never run; choose another encoder.")
    if kind not in loaders:
        raise InputError(f"the {form} model in {folder} does not encode {kind}s; choose another encoder.")
    return Saved(_license(folder), partial(loaded, loaders[kind], form, folder))


def transformers_text(folder: Path, device: torch.device, max_length: int | None = None) -> RunEncoder:
    """A text model of transformers: the mean over word pieces, or its own text features."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(  # nosec B615: a local folder
        folder, local_files_only=True, trust_remote_code=False
    )
    model = _pretrained(AutoModel, folder).to(device)
    positions = getattr(model.config, "max_position_embeddings", LONGEST)
    limit = max_length or min(tokenizer.model_max_length, positions, LONGEST)

    return TextEncoder(tokenizer, _Transformer(model), limit, device)


class _Transformer(nn.Module):
    """The mean over word pieces, or the model's own text features."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        if hasattr(self.model, "get_text_features"):
            return _tensor(self.model.get_text_features(input_ids=ids, attention_mask=mask))
        return mean_pooling(self.model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def transformers_image(folder: Path, device: torch.device) -> RunEncoder:
    """An image model of transformers: image features, the class token, or the mean over places."""
    from transformers import AutoModel

    settings = _json(folder / "preprocessor_config.json")
    size = settings.get("size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    model = _pretrained(AutoModel, folder).to(device)
    crop = settings.get("crop_size")
    side = (crop if isinstance(crop, int) else (crop or {}).get("height")) or side or _image_size(model.config)
    return ImageEncoder(
        _VisionTransformer(model),
        device,
        settings.get("image_mean") or IMAGENET["mean"],
        settings.get("image_std") or IMAGENET["std"],
        int(side or SIDE),
    )


class _VisionTransformer(nn.Module):
    """Image features, the class token, or the mean over places."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.class_token = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self.model, "get_image_features"):
            return _tensor(self.model.get_image_features(pixel_values=x))
        hidden = self.model(pixel_values=x).last_hidden_state
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.class_token else hidden.mean(1)


def sentence_transformers_text(folder: Path, device: torch.device) -> RunEncoder:
    """A model of sentence-transformers, with its own pooling."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(
        str(folder),
        device=str(device),
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={"use_safetensors": True},
    ).eval()

    return TextEncoder(model.tokenizer, _Sentence(model), int(model.max_seq_length or LONGEST), device)


class _Sentence(nn.Module):
    """The sentence embedding."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def timm_image(folder: Path, device: torch.device) -> RunEncoder:
    """A model of timm: its pooled features before the classifier."""
    import timm
    from safetensors.torch import load_file

    config = _json(folder / "config.json")
    model = timm.create_model(config["architecture"], pretrained=False, num_classes=0, **config.get("model_args", {}))
    missing, _ = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # the classifier is left
    _complete(missing, folder)
    settings = config.get("pretrained_cfg", {})
    return ImageEncoder(
        model.eval().to(device),
        device,
        settings.get("mean") or IMAGENET["mean"],
        settings.get("std") or IMAGENET["std"],
        int((settings.get("input_size") or (3, SIDE, SIDE))[-1]),
    )


def open_clip_image(folder: Path, device: torch.device) -> RunEncoder:
    """The image side of a model of open_clip."""
    import open_clip

    config = _json(folder / "open_clip_config.json")
    model = open_clip.create_model(f"local-dir:{folder}", device=device).eval()
    settings = config.get("preprocess_cfg", {})
    size = config.get("model_cfg", {}).get("vision_cfg", {}).get("image_size", SIDE)
    side = size if isinstance(size, int) else size[0]
    mean, std = settings.get("mean") or IMAGENET["mean"], settings.get("std") or IMAGENET["std"]
    return ImageEncoder(_Vision(model), device, mean, std, side)


class _Vision(nn.Module):
    """The image side of a model of images and texts."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.encode_image(x)


def open_clip_text(folder: Path, device: torch.device) -> RunEncoder:
    """The text side of a model of open_clip; texts are cut at its length, as it does."""
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}", device=device).eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")

    @torch.inference_mode()
    def run(texts: Sequence[str], batch_size: int | None) -> Iterator[EncodedBatch]:
        step = batch_size or 64
        for start in range(0, len(texts), step):
            part = list(texts[start : start + step])
            found = model.encode_text(tokenizer(part).to(device), normalize=True).float().cpu().numpy()
            yield np.arange(start, start + len(part)), found

    return run


def loaded(
    load: Callable[[Path, torch.device], RunEncoder], library: str, folder: Path, device: torch.device
) -> RunEncoder:
    module = library.replace("-", "_")
    if importlib.util.find_spec(module) is None:
        raise InputError(f"the model in {folder} needs {library}, which is not installed: pip install {library}.")
    try:
        with _quiet():
            return load(folder, device)
    except InputError:
        raise
    except Exception as error:  # whatever a library says of a damaged or unknown model
        raise InputError(f"{library} cannot load the model in {folder}: {_first_line(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of transformers, which would run through those of the command line."""
    if importlib.util.find_spec("transformers") is None:
        yield
        return
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _pretrained(auto: Any, folder: Path) -> Any:
    model, report = auto.from_pretrained(
        folder,
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        dtype=torch.float32,
        output_loading_info=True,
    )
    _complete(report["missing_keys"], folder)
    return model.eval().requires_grad_(False)


def _complete(missing: Any, folder: Path) -> None:
    """A weight that the file lacks would be random, and so would the embeddings; poolers are not used."""
    lost = sorted(name for name in missing if "pooler" not in name)
    if lost:
        raise InputError(f"the weights in {folder} lack {lost[0]} and {len(lost) - 1} more; they are of another model.")


def _tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


def _image_size(config: Any) -> int | None:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None)
    return size if size is None or isinstance(size, int) else int(size[0])


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged: {_first_line(error)}") from error
    return content if isinstance(content, dict) else {}


def _license(folder: Path) -> str:
    """As the front matter of the model's card says."""
    card = folder / "README.md"
    head = card.read_text(encoding="utf-8", errors="replace")[:5000] if card.is_file() else ""
    stated = re.search(r"^license(?:_name)?:\s*['\"]?([\w.+-]+)", head, re.MULTILINE)
    return stated.group(1) if stated else "not stated"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
