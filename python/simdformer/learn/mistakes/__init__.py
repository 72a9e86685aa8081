'''The catalogue: operations and layers as programs, and beside each what goes wrong in it.

`simdformer.mistakes.add` puts mistakes of your own into it:

    sf.mistakes.add(
        """
        softmax.shift (01 §1) > Subtract the maximum of each row.

        minimum_subtracted: the minimum is subtracted instead of the maximum
            min and max differ in two letters; the exponents are then all above zero.
            | scores = scores - scores.min(axis=along, keepdims=True)
        """
    )

It begins with the step that is done otherwise, where to read about it, and what to do instead. Each
mistake below has a name, half a sentence for what is wrong, why, and behind | the lines that take
the place of the step's own, for which ... stands.
'''

from typing import Any

__all__ = ["add"]
__dir__ = __all__.copy  # what dir() and completion show


def add(text: str, *, calls: tuple[Any, ...] = ()) -> list[str]:
    '''Puts mistakes into the catalogue of `simdformer.check`, for as long as the process lives.

    Parameters
    ----------
    text : str
        The head of a step and the mistakes in it, as above; several such parts may follow each
        other. `simdformer.learn.catalogue` says all that can be written.
    calls : tuple of functions
        What the lines call, beside what the step itself calls.

    Returns
    -------
    list of str
        The full names of the mistakes, "softmax.minimum_subtracted". One that has this name already
        is replaced, so that a cell of a notebook can run again. Nothing is added if one is wrong.

    Raises
    ------
    ValueError
        There is no such step; a line is not Python, or reads a name that no step of that program
        binds; a mistake changes nothing; the text is neither a head nor a mistake.

    >>> import simdformer as sf
    >>> sf.mistakes.add(
    ...     """
    ...     softmax.shift (01 §1) > Subtract the maximum of each row.
    ...
    ...     minimum_subtracted: the minimum is subtracted instead of the maximum
    ...         min and max differ in two letters.
    ...         | scores = scores - scores.min(axis=along, keepdims=True)
    ...     """
    ... )
    ['softmax.minimum_subtracted']
    '''
    from simdformer.learn.check.additions import added

    return added(text, calls)
