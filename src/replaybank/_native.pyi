"""Typed face of the compiled module: kernels over addresses of checked arrays."""
