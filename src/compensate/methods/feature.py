"""Methods that compensate features."""

from __future__ import annotations

__all__: list[str] = []
