"""Training: a model's loss and gradients, and runs that survive whatever ends them."""
