"""Costs of matrix products and passes that tests write down one by one."""

import numpy as np

from crossflow.cost.roofline import pass_costs, product_costs


def gemm_costs(gemms, device, dtype, element):
    """Costs of products in a sequence, results in the products' own type."""
    sizes = np.array([[[getattr(gemm, name)] for gemm in gemms] for name in ("m", "n", "k")] + [[[1.0]] * len(gemms)], dtype=float)
    result = np.array([[element * (2.0 if gemm.adds else 1.0)] for gemm in gemms])
    return product_costs(sizes, result, device, dtype)


def half_costs(m, n, k, device, **more):
    """Costs of products in fp16, their sizes of shape (kernels, n)."""
    sizes = np.stack(np.broadcast_arrays(m, n, k, 1.0))
    return product_costs(sizes, np.full((len(sizes[0]), 1), 2.0), device, "fp16", **more)


def stream_costs(passes, device, dtype):
    """Costs of passes over memory."""
    moved, flops, launches = (np.array([[getattr(one, name)] for one in passes], float) for name in ("moved", "flops", "launches"))
    return pass_costs(moved, flops, launches, device, dtype)
