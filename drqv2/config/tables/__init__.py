"""The keys of each regime, and those that all regimes share."""
