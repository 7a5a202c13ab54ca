"""An HTML report over run directories: curves, tables, videos."""
