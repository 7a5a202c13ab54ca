"""Agents: one file per algorithm, to be read alongside its paper."""
