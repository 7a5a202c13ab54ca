"""Command lines: Hydra, jobs, the tools' arguments, exit codes."""
