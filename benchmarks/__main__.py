"""`python -m benchmarks` runs all benchmarks."""

from benchmarks.all import main

main()
