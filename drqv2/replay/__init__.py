"""Replay on disk: each episode is written once, batches are gathered in the background."""
