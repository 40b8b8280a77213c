"""Fits on a cluster: B goes out, sums of size d x k and k x k come back."""
