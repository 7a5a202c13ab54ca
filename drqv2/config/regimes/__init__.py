"""What each regime is: its keys, its agents, its rules. A file here is a regime of `schema.REGIMES`."""
