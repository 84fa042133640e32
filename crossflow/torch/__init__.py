"""PyTorch models as programs: what a model computes, sends and keeps at any world size, recorded without running it.

Modules of this package import torch, which is an extra (`pip install 'crossflow[torch]'`); the rest of crossflow never does.
"""
