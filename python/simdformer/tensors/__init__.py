"""Functions of arrays on PyTorch's tensors: what `simdformer.torch` and `simdformer.transformers`
both stand on."""
