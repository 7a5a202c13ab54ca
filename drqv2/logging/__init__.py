"""Logs of a run: CSV files, console, sinks, where the time goes, provenance, diagnostics."""
