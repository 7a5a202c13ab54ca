"""Run directories as one page: curves, tables, videos."""
