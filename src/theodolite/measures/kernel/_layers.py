"""CKA of many layers with each other and with labels, each kernel read once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from theodolite.checks import (
    require_axes,
    require_labels,
    require_same_length,
    require_same_shape,
)
from theodolite.errors import ShapeError
from theodolite.linalg import KernelProducts, array_function, double, eps_of, prints_shapes
from theodolite.measures.kernel._from_features import (
    CenteredRows,
    LabelKernel,
    factor_products,
    require_paired_features,
    vanishing,
    with_labels,
)
from theodolite.measures.kernel.alignment import cka_from_products, require_grams, safe_scale

_BLOCK_BYTES = 256 * 2**20  # centred rows of all the kernels together
Estimator = Literal["debiased", "biased"]


@dataclass(frozen=True)
class _Kernel:
    """How to read centred rows of a kernel, and the squared norm of what centring takes away."""

    rows: Callable[[slice], Tensor]
    constant: Float[Tensor, ""]


def gram_products(
    grams: Sequence[Float[Tensor, "n n"]], labels: Integer[Tensor, " n"] | None = None
) -> tuple[KernelProducts, Float[Tensor, " m"]]:
    """Products of the centred kernels, that of the labels last, and the share of each that is left.

    No second n x n matrix is formed: rows are centred by means that are known beforehand.
    """
    kernels = [_of_gram(gram) for gram in grams]
    if labels is not None:
        kernels.append(_of_labels(labels.to(grams[0].device)))
    n = len(grams[0])
    step = max(1, _BLOCK_BYTES // (8 * n * len(kernels)))
    products, diagonals = kernels[0].constant.new_zeros(len(kernels), len(kernels)), []
    for start in range(0, n, step):
        block = slice(start, min(start + step, n))
        rows = torch.stack([kernel.rows(block) for kernel in kernels], dim=1)  # rows, m, columns
        products = products + (rows @ rows.mT).sum(0)
        diagonals.append(rows[:, :, block].diagonal(dim1=0, dim2=2))
    norms = products.diagonal().detach()
    whole = norms + torch.stack([kernel.constant for kernel in kernels])
    left = (norms / torch.where(whole > 0, whole, torch.ones_like(whole))).sqrt()
    return KernelProducts.of(products, torch.cat(diagonals, 1)), left


def _of_gram(gram: Tensor) -> _Kernel:
    """A matrix in a safe range: row means first, column means of the result then."""
    scale = safe_scale(gram)
    means = gram.mean(1, dtype=torch.float64) / scale
    offset = means - means.mean()

    def rows(block: slice) -> Tensor:
        scaled = gram[block] if scale == 1 else double(gram[block]) / scale
        return scaled - means[block].unsqueeze(1) - offset

    return _Kernel(rows, _constant_part(means.detach()))


def _of_labels(labels: Tensor) -> _Kernel:
    """The indicator of a shared class."""
    share = torch.bincount(labels).double() / len(labels)
    own, mean = share[labels], share.square().sum()

    def rows(block: slice) -> Tensor:
        same = labels[block].unsqueeze(1) == labels
        return same.double() - own[block].unsqueeze(1) - own + mean

    return _Kernel(rows, _constant_part(own))


def _constant_part(means: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    r"""Squared norm of :math:`v1^\top + 1v^\top + m11^\top`, from the means of the rows."""
    n, mean = len(means), means.mean()
    return 2 * n * (means - mean).square().sum() + (n * mean).square()


@prints_shapes
@dataclass(frozen=True)
class CkaMatrix:
    """CKA of every pair of layers, and of every layer with the labels."""

    between: Float[Tensor, "l l"]
    target: Float[Tensor, " l"] | None  # None without labels
    estimator: Estimator


@prints_shapes
@dataclass(frozen=True)
class LayerProfile:
    """CKA of every layer with one reference, in order of depth."""

    values: Float[Tensor, " l"]
    estimator: Estimator

    @property
    def mean(self) -> Float[Tensor, ""]:
        """Unweighted mean over the layers; nan if a layer's value is undefined."""
        return self.values.mean()

    @property
    def last(self) -> Float[Tensor, ""]:
        """Value of the last layer."""
        return self.values[-1]


@array_function
def cka_matrix(
    layers: Sequence[Float[Tensor, "n _"]] | Mapping[str, Float[Tensor, "n _"]],
    labels: Integer[Tensor, " n"] | None = None,
    debiased: bool = True,
) -> CkaMatrix:
    r"""Linear CKA of many layers with each other and with labels, each kernel computed once.

    Whichever is cheaper: blocks :math:`F_a^\top F_b` for all pairs, or tiles of all the Gram
    matrices at once, after which every pair is nearly free. No n x n matrix exists at any time.

    Range: entries in [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of any layer; a joint permutation.
    Undefined (``nan``): entries of layers that are constant up to rounding, of labels of one class;
        debiased: fewer than four examples.

    Args:
        layers: features of every layer, one row per example, the same examples in the same order;
            a list, or a mapping such as :func:`theodolite.features` returns.
        labels: integer class of every example.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Returns:
        The table of all pairs of layers and, if labels are given, CKA to labels of each
        layer.

    Raises:
        ShapeError: If there is no layer, or the layers differ in their number of rows.
        DomainError: If an entry is not finite or a label is negative, or one is a Gram matrix.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> table = cka_matrix([x, -x], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> [round(value, 4) for value in (table.between[0, 1].item(), table.target[0].item())]
        [1.0, 0.9412]

    References:
        [canatar2022], Fig. 1; [kornblith2019], Fig. 2; [song2012], Eq. (5).
    """
    parts, factors = _factors(layers, "gram_cka_matrix")
    count, eps = len(factors), eps_of(*parts)
    if labels is None:
        products = factor_products(factors)
        defined = ~vanishing(factors, products.traces, eps)
    else:
        kernel = _label_kernel(labels, parts[0], factors[0])
        products = with_labels(factors, kernel)
        varies = ~vanishing(factors, products.traces[:count], eps)
        defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    values = cka_from_products(products, debiased=debiased, eps=eps, defined=defined)
    target = None if labels is None else values[:count, count]
    return CkaMatrix(values[:count, :count], target, "debiased" if debiased else "biased")


@array_function
def gram_cka_matrix(
    grams: Sequence[Float[Tensor, "n n"]],
    labels: Integer[Tensor, " n"] | None = None,
    debiased: bool = True,
) -> CkaMatrix:
    r"""CKA of many kernels with each other and with labels, from their Gram matrices.

    The same numbers as :func:`cka` of every pair; every matrix is read once, in blocks of rows.

    Range: entries in [-1, 1]; biased: [0, 1] for positive semi-definite matrices.
    Invariant to: scaling of any kernel; adding :math:`v1^\top + 1v^\top`; a joint permutation.
    Undefined (``nan``): entries of kernels that are constant up to rounding, see :func:`cka`.

    Args:
        grams: symmetric Gram matrices of the same examples in the same order.
        labels: integer class of every example.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Returns:
        The table of all pairs of kernels and, if labels are given, CKA to labels of each.

    Raises:
        ShapeError: If there is no kernel, or the matrices differ in size.
        DomainError: If one is not symmetric or not finite, or a label is negative.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> table = gram_cka_matrix([x @ x.T], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> round(table.target[0].item(), 4)
        0.9412

    References:
        [canatar2022], Fig. 1; [kornblith2019], Fig. 2; [song2012], Eq. (5).
    """
    if len(grams) == 0:
        raise ShapeError("grams: expected at least one Gram matrix, got none")
    named = {f"grams[{index}]": gram for index, gram in enumerate(grams)}
    require_grams("call cka_matrix", **named)
    require_same_shape(**named)
    count, eps = len(grams), eps_of(*grams)
    if labels is not None:
        require_same_length(gram=grams[0], labels=labels)
        require_labels(labels)
    products, left = gram_products(grams, labels)
    values = cka_from_products(products, debiased=debiased, eps=eps, defined=left > 8 * eps)
    target = None if labels is None else values[:count, count]
    return CkaMatrix(values[:count, :count], target, "debiased" if debiased else "biased")


@array_function
def layer_profile(
    layers: Sequence[Float[Tensor, "n _"]] | Mapping[str, Float[Tensor, "n _"]],
    reference: Integer[Tensor, " n"] | Float[Tensor, "n e"],
    debiased: bool = True,
) -> LayerProfile:
    r"""Linear CKA of every layer with one reference: class labels, targets, or the inputs.

    .. math:: l \mapsto \mathrm{CKA}(K^{(l)}, K_{\bar f})

    Its unweighted mean, ``.mean``, is the paper's layer-averaged CKA, ``.last`` its "CKA". For the
    other sets (test, inputs) call it again: everything is recomputed on each.

    Range: entries in [-1, 1]; biased: [0, 1].
    Invariant to: scaling, orthogonal maps and shifts of any layer; a joint permutation.
    Undefined (``nan``): entries of layers that are constant up to rounding, see :func:`linear_cka`.

    Args:
        layers: features of every layer in order of depth, one row per example; a list, or a
            mapping such as :func:`theodolite.features` returns.
        reference: integer labels, or a matrix with one row per example.
        debiased: the estimator: debiased, or the paper's plug-in form.

    Returns:
        CKA of each layer with the reference, in order of depth.

    Raises:
        ShapeError: If there is no layer, or numbers of rows differ.
        DomainError: If an entry is not finite or a label is negative.

    Examples:
        >>> x = torch.tensor([[0.0], [1.0], [4.0], [5.0]])
        >>> profile = layer_profile([x, x > 2], torch.tensor([0, 0, 1, 1]), debiased=False)
        >>> round(profile.mean.item(), 4)
        0.9706

    References:
        [canatar2022], Fig. 1 and Table I.
    """
    parts, factors = _factors(layers, "cka")
    count, eps = len(factors), eps_of(*parts)
    if reference.ndim == 1:
        kernel = _label_kernel(reference, parts[0], factors[0])
        products = with_labels(factors, kernel, pairs=[])
        varies = ~vanishing(factors, products.traces[:count], eps)
        defined = torch.cat([varies, kernel.defined.unsqueeze(0)])
    else:
        require_paired_features("cka", layer=parts[0], reference=reference)
        factors = [*factors, CenteredRows.of(reference)]
        products = factor_products(factors, [(index, count) for index in range(count)])
        defined = ~vanishing(factors, products.traces, eps)
    values = cka_from_products(products, debiased=debiased, eps=eps, defined=defined)[:count, count]
    return LayerProfile(values, "debiased" if debiased else "biased")


def _factors(
    layers: Sequence[Tensor] | Mapping[str, Tensor], of_grams: str
) -> tuple[list[Tensor], list[CenteredRows]]:
    """Every layer's features, checked, and their factors."""
    if len(layers) == 0:
        raise ShapeError("layers: expected at least one layer's features, got none")
    named = layers if isinstance(layers, Mapping) else dict(enumerate(layers))
    require_paired_features(of_grams, **{f"layers[{key!r}]": layer for key, layer in named.items()})
    return list(named.values()), [CenteredRows.of(layer) for layer in named.values()]


def _label_kernel(labels: Tensor, layer: Tensor, factor: CenteredRows) -> LabelKernel:
    require_axes(1, labels=labels)
    require_same_length(layer=layer, labels=labels)
    return LabelKernel.of(labels.to(factor.rows.device), require_labels(labels))
