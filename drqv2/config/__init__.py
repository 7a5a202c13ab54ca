"""Configuration: one description of each key, its checks, and messages for people."""
