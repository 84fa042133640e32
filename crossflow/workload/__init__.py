"""Models as graphs of kernels."""
