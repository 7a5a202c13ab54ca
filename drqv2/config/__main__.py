"""Writes the page of all keys: python -m drqv2.config > docs/configuration.md."""

import argparse

from drqv2.config.help import markdown

argparse.ArgumentParser("python -m drqv2.config", description=__doc__).parse_args()
print(markdown())
