"""The machine below: files, memory and cores, signals."""
