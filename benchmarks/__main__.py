"""`python -m benchmarks` runs them all."""

from benchmarks.all import main

main()
