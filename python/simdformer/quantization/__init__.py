"""Weights in few bits: the types that GGUF files hold, how each is read, and how it is made.

- types.py   the table of the types
- blocks.py  what the bytes of a block mean, a few lines of numpy a type: the specification
- weight.py  `quantize` and `QuantizedWeight`; from floats to blocks is C++
"""
