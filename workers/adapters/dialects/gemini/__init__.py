"""Google's Gemini API."""

from fairlane.workers.adapters.dialects.gemini.dialect import GeminiDialect

__all__ = ["GeminiDialect"]
