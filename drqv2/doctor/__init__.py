"""`python -m drqv2.doctor`: check that this machine can train, and measure how fast."""
