"""The Workspaces of regimes other than DrQ-v2, whose own is in train.py."""
