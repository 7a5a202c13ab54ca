"""Tests and measurements of this project on a machine with a GPU, within a number of minutes: `make gpu`.

`__main__` runs the sections one after another, each a process (`child`) that prints rows (`sections`, `learning`), and
`results` writes them down as they come. `__main__`, `child` and `results` need nothing but Python.
"""
