"""Saved models of `transformers`, `sentence-transformers`, `timm` and `open_clip`, from a folder or from the hub.

A hub model is first downloaded to a folder. No code of a model is executed: weights are read from safetensors files only, and a
model that needs its own code (``trust_remote_code``) is refused.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
"""Files of a model that are read: settings, weights, vocabularies and the license."""

MAX_TOKENS = 512
"""Tokens of a chunk if the tokenizer states no limit."""

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
"""For models without a stated normalization of images."""

RunEncoder = Callable[[Sequence[Any], int | None], Iterator[EncodedBatch]]
"""A loaded encoder: from items and a batch size (or None) to batches of embeddings."""


def ready(kind: str) -> bool:
    """Whether the library of the packaged encoders of this kind is installed."""
    return kind != "text" or importlib.util.find_spec("transformers") is not None


def download(name: str, known: Sequence[str]) -> tuple[Path, str]:
    """The folder of a hub model in the cache of the hub, downloaded if needed, and its revision.

    ``owner/model@revision`` pins a commit, a tag or a branch.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f'"{name}" is not an installed encoder ({nearest(name, known)}), and models of the Hugging Face hub need '
            'transformers: pip install "compensate[encoders]".'
        )
    import huggingface_hub

    try:
        repository, _, revision = name.partition("@")
        folder = huggingface_hub.snapshot_download(  # nosec B615: the user pins it if wanted; only data is fetched
            repository, revision=revision or None, allow_patterns=[f"*{suffix}" for suffix in READ]
        )
    except Exception as error:  # a dozen classes, from the network, the hub and its cache
        raise InputError(
            f'the encoder "{name}" is not installed here and cannot be fetched from the Hugging Face hub '
            f"({_first_line(error)}). Give the folder of a saved model, or an installed encoder: {nearest(name, known)}"
        ) from error
    return Path(folder), Path(folder).name


def saved_model(folder: Path, kind: str) -> tuple[str, Callable[[torch.device], RunEncoder]]:
    """The license of the model in a folder, as stated in its card, and its loader."""
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
            f"{folder} is not a known saved model; expected the config.json of transformers or timm, modules.json of "
            "sentence-transformers, or open_clip_config.json."
        )
    if "auto_map" in config:
        raise InputError(f"the model in {folder} needs code of its own, which is never run; choose another encoder.")
    if kind not in loaders:
        raise InputError(f"the {form} model in {folder} does not encode {kind}s; choose another encoder.")
    card = folder / "README.md"
    head = card.read_text(encoding="utf-8", errors="replace")[:5000] if card.is_file() else ""
    stated = re.search(r"^license(?:_name)?:\s*['\"]?([\w.+-]+)", head, re.MULTILINE)
    return stated.group(1) if stated else "not stated", partial(loaded, loaders[kind], form, folder)


class Features(nn.Module):
    """A model and the function that computes its features: ``features(model, *inputs)``."""

    def __init__(self, model: Any, features: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.features = model, features

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.features(self.model, *inputs)


def transformers_text(folder: Path, device: torch.device, max_length: int | None = None) -> RunEncoder:
    """A text model of transformers: its text features, or the mean over tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(  # nosec B615: a local folder
        folder, local_files_only=True, trust_remote_code=False
    )
    model = _pretrained(AutoModel, folder).to(device)
    positions = getattr(model.config, "max_position_embeddings", MAX_TOKENS)
    limit = max_length or min(tokenizer.model_max_length, positions, MAX_TOKENS)
    return TextEncoder(tokenizer, Features(model, _text_features), limit, device)


def _text_features(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    if hasattr(model, "get_text_features"):
        return _tensor(model.get_text_features(input_ids=ids, attention_mask=mask))
    return mean_pooling(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def transformers_image(folder: Path, device: torch.device) -> RunEncoder:
    """An image model of transformers: its image features, the class token, or the mean over positions."""
    from transformers import AutoModel

    settings = _json(folder / "preprocessor_config.json")
    model = _pretrained(AutoModel, folder).to(device)
    size, crop = settings.get("size") or {}, settings.get("crop_size") or {}
    side = size if isinstance(size, int) else size.get("height") or size.get("shortest_edge")
    side = (crop if isinstance(crop, int) else crop.get("height")) or side
    side = side or getattr(getattr(model.config, "vision_config", model.config), "image_size", None) or SIDE
    return _image_encoder(
        Features(model, _image_features), device, settings.get("image_mean"), settings.get("image_std"), side
    )


def _image_features(model: Any, x: Tensor) -> Tensor:
    if hasattr(model, "get_image_features"):
        return _tensor(model.get_image_features(pixel_values=x))
    hidden = model(pixel_values=x).last_hidden_state
    if hidden.ndim == 4:
        return hidden.mean((2, 3))
    class_token = any(name.endswith(("cls_token", "class_embedding")) for name, _ in model.named_parameters())
    return hidden[:, 0] if class_token else hidden.mean(1)


def _image_encoder(model: nn.Module, device: torch.device, mean: Any, std: Any, side: Any) -> RunEncoder:
    """An encoder with ImageNet's normalization if the model states none."""
    side = int(side if isinstance(side, int) else side[0])
    return ImageEncoder(model, device, mean or IMAGENET["mean"], std or IMAGENET["std"], side)


def sentence_transformers_text(folder: Path, device: torch.device) -> RunEncoder:
    """A model of sentence-transformers, with its own pooling."""
    from sentence_transformers import SentenceTransformer

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    options["model_kwargs"] = {"use_safetensors": True}
    model = SentenceTransformer(str(folder), device=str(device), **options).eval()
    limit = int(model.max_seq_length or MAX_TOKENS)
    return TextEncoder(model.tokenizer, Features(model, _sentence_features), limit, device)


def _sentence_features(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    return model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]


def timm_image(folder: Path, device: torch.device) -> RunEncoder:
    """A model of timm: its pooled features before the classifier."""
    import timm
    from safetensors.torch import load_file

    saved = _json(folder / "config.json")
    model = timm.create_model(saved["architecture"], pretrained=False, num_classes=0, **saved.get("model_args", {}))
    missing, _ = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # without the classifier
    _complete(missing, folder)
    settings = saved.get("pretrained_cfg", {})
    side = (settings.get("input_size") or (SIDE,))[-1]
    return _image_encoder(model.eval().to(device), device, settings.get("mean"), settings.get("std"), side)


def open_clip_image(folder: Path, device: torch.device) -> RunEncoder:
    """The image model of open_clip."""
    import open_clip

    config = _json(folder / "open_clip_config.json")
    model = open_clip.create_model(f"local-dir:{folder}", device=device).eval()
    settings = config.get("preprocess_cfg", {})
    side = config.get("model_cfg", {}).get("vision_cfg", {}).get("image_size", SIDE)
    return _image_encoder(Features(model, _clip_features), device, settings.get("mean"), settings.get("std"), side)


def _clip_features(model: Any, x: Tensor) -> Tensor:
    return model.encode_image(x)


def open_clip_text(folder: Path, device: torch.device) -> RunEncoder:
    """The text model of open_clip; texts are truncated at its length."""
    import open_clip

    model = open_clip.create_model(f"local-dir:{folder}", device=device).eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")

    @torch.inference_mode()
    def run(texts: Sequence[str], batch_size: int | None) -> Iterator[EncodedBatch]:
        step = batch_size or 64
        for start in range(0, len(texts), step):
            part = list(texts[start : start + step])
            values = model.encode_text(tokenizer(part).to(device), normalize=True).float().cpu().numpy()
            yield np.arange(start, start + len(part)), values

    return run


def loaded(
    load: Callable[[Path, torch.device], RunEncoder], library: str, folder: Path, device: torch.device
) -> RunEncoder:
    """The encoder in a folder; errors of the library become an `InputError`."""
    if importlib.util.find_spec(library.replace("-", "_")) is None:
        raise InputError(f"the model in {folder} needs {library}, which is not installed: pip install {library}.")
    try:
        with _quiet():
            return load(folder, device)
    except InputError:
        raise
    except Exception as error:  # any error of the library about a damaged or unknown model
        raise InputError(f"{library} cannot load the model in {folder}: {_first_line(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars of transformers, which would mix with the bars of the command line."""
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
    options = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    model, report = auto.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
    _complete(report["missing_keys"], folder)
    return model.eval().requires_grad_(False)


def _complete(missing: Any, folder: Path) -> None:
    """Refuse missing weights, which would be random; poolers are not used."""
    lost = sorted(name for name in missing if "pooler" not in name)
    if lost:
        raise InputError(f"the weights in {folder} lack {lost[0]} and {len(lost) - 1} more; they are of another model.")


def _tensor(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


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
