"""Replay on disk: episodes written once, batches gathered in the background."""
