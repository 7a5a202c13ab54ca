"""Agents: one file is one algorithm, to be read beside its paper."""
