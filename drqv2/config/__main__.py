"""Writes the page of all keys: python -m drqv2.config > docs/configuration.md."""

import argparse

from drqv2.config.help import markdown
from drqv2.launch.exits import clean_exit
from drqv2.programs import as_here

with clean_exit():
    argparse.ArgumentParser(as_here("python -m drqv2.config"), description=as_here(__doc__ or "")).parse_args()
    print(markdown())
