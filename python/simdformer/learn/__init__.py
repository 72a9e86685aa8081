"""Learning from mistakes: computations cut into steps, and what goes wrong in them.

`check` compares an array with the right one and names the mistake in it, `check_trace` does so for
the activations of a whole model, `exercises` are functions to be written, `plots` are pictures of
what a transformer does. All of them are reached from the package itself: `simdformer.check`.
"""
