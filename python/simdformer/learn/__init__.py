"""Learning from mistakes: computations cut into steps, and what goes wrong in them.

    program      what a step is; catalogue: what a mistake is, a step done otherwise
    mistakes/    the catalogue: every operation and layer as a program, its mistakes beside it
    check/       is this array right, and if not, which mistake gives it?
    trace/       the same for the activations of a whole model, from the first that is wrong
    gradients/   the same for the gradients of all its weights, from the logits back
    exercises/   functions to be written, and checked in a process of their own
    testing      the measure of `check` as assertions
    plots/       pictures of what a transformer does; they need none of the others

Each stands on those above it. They are reached from the package itself: `simdformer.check`.
"""
