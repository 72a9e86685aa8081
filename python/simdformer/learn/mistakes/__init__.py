"""The catalogue: operations and layers as programs, and beside each what goes wrong in it."""
