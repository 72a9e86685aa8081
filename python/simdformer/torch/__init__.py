"""Kernels on the tensors of PyTorch."""
