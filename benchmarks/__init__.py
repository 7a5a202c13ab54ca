"""What an update, a batch, a step and the whole loop cost on this machine; `make bench` runs all of it."""
