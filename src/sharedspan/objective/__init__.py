"""What solvers ask of the data: the loss, its gradients, and least squares in a span."""
