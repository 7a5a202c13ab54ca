"""The operating system: crash-safe files, memory and cores, signals."""
