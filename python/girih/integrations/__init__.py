"""Girih inside other libraries: `girih.integrations.transformers` for Hugging Face transformers."""
