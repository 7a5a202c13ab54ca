"""Configuration: one description of each key, its checks, and user-facing messages."""
