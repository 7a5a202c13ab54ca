"""Writes the page of all keys: python -m drqv2.config > docs/configuration.md."""

from drqv2.config.help import markdown

print(markdown())
