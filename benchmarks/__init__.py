"""Benchmarks of updates, batches, environment steps and the whole loop; `make bench` runs them all."""
