"""Kernels for the tests of the family tangent."""

import torch


def feature_kernel(features):
    """Tangent kernel of explicit tangent features (n, c, p)."""
    return torch.einsum("xip,yjp->xiyj", features, features)
