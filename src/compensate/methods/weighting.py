"""Peers that weight or reshape the loss, for contrast: they are not compensation."""

from __future__ import annotations

__all__: list[str] = []
