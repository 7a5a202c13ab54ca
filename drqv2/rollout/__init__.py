"""Segments of consecutive steps, collected from many environments at once."""
