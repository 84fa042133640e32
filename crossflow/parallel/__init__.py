"""The program that a strategy makes of a graph, and the kernels of a transformer's blocks."""
