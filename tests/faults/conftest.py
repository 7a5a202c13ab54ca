"""Which of the fault tests run by themselves."""

# Not yet run as a whole: by hand, with `pytest tests/faults/test_full_disk.py --noconftest`, until they have been.
collect_ignore = ["test_full_disk.py", "test_bad_files.py"]
