"""Stored episodes: those of this project's runs, and the formats of others; `python -m drqv2.datasets`."""
