"""Snapshots: the file format, the background writer, the rules of a resume, an agent's state."""
