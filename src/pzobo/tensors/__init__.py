"""What is done with trees of tensors? Arithmetic, sparse products, evaluating again alike, the autograd node."""
