"""Errors of imani2022, and choices that the paper leaves open."""

from theodolite_papers.ledger import Erratum

__all__ = ["ERRATA"]

ERRATA = (
    Erratum(
        "E1",
        "Proposition 1: gradient descent on the sum of squares with step size eta",
        "the update drops the factor 2 of the gradient: eta is the step size of half the sum; "
        "the step sizes 0.01 to 10 of Figure 1 make sense on the mean only",
    ),
    Erratum(
        "E2",
        "Figure 4: singular values 9.58 and 2.84 of 1000 unit vectors",
        "1000 unit vectors force squares that sum to 1000, not 99.8: these are values of 100 "
        "points; with 1000 they are about 30.3 and 9.0",
    ),
    Erratum(
        "E3",
        "at least as many examples as features, and full rank",
        "the paper's own experiments break both (1024 to 4096 features of 1000 examples, n x n RBF "
        "features); everything holds for any shape and rank with the minimum-norm solution",
    ),
    Erratum(
        "E4",
        "inputs of length at most 1",
        "what must have length at most 1 are the rows of the representation that is measured",
    ),
    Erratum(
        "E5",
        "a smaller sum in Proposition 1 brings the weights closer to the solution",
        "it brings the predictions closer; for the weights each term is divided by the squared "
        "singular value",
    ),
    Erratum(
        "E6",
        "Proposition 2: 0.9 of the alignment is gone after O(1 / (eta tau^2)) steps",
        "right after rounding up, for a positive alignment and eta of at most the inverse square "
        "of the largest singular value; beyond that the bound is false",
    ),
    Erratum(
        "E7",
        "HOG with 64 pixels per cell and 4 cells per block on 32x32 images",
        "a cell of 64x64 pixels does not fit; read as cells of 8x8 = 64 pixels and blocks of "
        "2x2 = 4 cells, 324 values",
    ),
    Erratum(
        "E8",
        "abstract: alignment increases with depth",
        "the body says, and shows, that it increases from layer to layer of one network; not "
        "consistently with the number of layers",
    ),
    Erratum(
        "E9",
        "higher alignment means faster gradient descent, with a step size tuned for each "
        "representation",
        "true at a common step size; with tuned ones what counts are singular values in units of "
        "the largest: a flat spectrum has low alignment and converges in one step",
    ),
    Erratum(
        "E10",
        "Figure 4: labels in the direction of v1 and v2, projected on left singular values",
        "the label vectors are compared with the left singular vectors u1 and u2",
    ),
    Erratum(
        "E11",
        "the conclusion refers to Figure 2 for the two clusters; 'Table 15'",
        "Figure 4; the table in Figure 15",
    ),
    Erratum(
        "E12",
        "the gradient of the decomposed loss is announced but not printed",
        "along v_i it is 2 sigma_i^2 (w_i - c_i / sigma_i)",
    ),
    Erratum(
        "E13",
        "Figure 9: singular values up to 115 for 1000 examples",
        "with unit rows none exceeds 31.6: these features were not normalised",
    ),
    Erratum(
        "E14",
        "a constant column stands for the bias without loss of generality",
        "after rows are normalised it is no longer constant and changes the curve; studies append "
        "it and then normalise, and Figures 7, 10 and 11 are judged without it too",
    ),
    Erratum(
        "E15",
        "alignment sums over d singular values, and starts at the squared norm of the labels",
        "the start needs all n left singular vectors, those of singular value zero included",
    ),
    Erratum(
        "E16",
        "'until convergence', 'best performing', depths, widths, optimisers, bandwidths, sparsity "
        "and SIFT details are not given",
        "chosen here; every study's config names its choice",
    ),
    Erratum(
        "E17",
        "Figure 16 averages curves of 465 pairs of different sizes",
        "thresholds mean different things for different sizes: shares of the label mass over "
        "thresholds divided by the root of n are averaged instead",
    ),
    Erratum(
        "E18",
        "alignment of ReLU, tanh and linear layers is compared directly",
        "non-negative features of balanced classes cannot exceed a normalised area of 0.707; "
        "others can reach 1",
    ),
)
