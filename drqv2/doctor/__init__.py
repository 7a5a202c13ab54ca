"""Is this machine ready to train, and how fast is it? `python -m drqv2.doctor`."""
