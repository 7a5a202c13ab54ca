"""Other libraries, set up for comparisons; they come with the extra `peers`."""
