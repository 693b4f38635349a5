"""Random symmetric matrices for the tests of the family covariance."""

import torch
from scipy.stats import ortho_group


def orthogonal(size, seed=0):
    if size == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    return torch.from_numpy(ortho_group.rvs(size, random_state=seed))


def with_eigenvalues(values, seed=0):
    """Symmetric, random eigenvectors."""
    basis = orthogonal(len(values), seed)
    matrix = basis * torch.tensor(values, dtype=torch.float64) @ basis.T
    return (matrix + matrix.T) / 2


def random_spd(size, seed=0):
    """Log-normal spectrum, random eigenvectors."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(size, generator=generator, dtype=torch.float64).exp()
    return with_eigenvalues(values.tolist(), seed)


def function_of(matrix, function):
    """``g(B)``: the function applied to the eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    result = vectors * function(values) @ vectors.T
    return (result + result.T) / 2
