"""The configuration keys in groups: those of every regime, and those of each."""
