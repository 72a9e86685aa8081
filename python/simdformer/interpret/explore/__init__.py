"""`sf.explore`: the page of `sf.look` in a notebook, where the kernel answers."""
