"""How long tests wait for other processes."""

PATIENCE = 300.0  # seconds; far more than a slow and busy machine needs
