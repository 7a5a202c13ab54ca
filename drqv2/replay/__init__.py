"""Episodes on disk, to be learnt from again and again: each is written once, batches are gathered in the background."""
