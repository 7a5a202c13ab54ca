"""Everything worth knowing of this project on a machine with a GPU, in the minutes there are: `make gpu`.

`__main__` runs the sections one after another, each a process (`child`) that prints rows (`sections`, `learning`), and
`results` writes them down as they come. `__main__`, `child` and `results` need nothing but Python.
"""
