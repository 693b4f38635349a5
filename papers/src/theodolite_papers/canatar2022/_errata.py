"""Errors of canatar2022, and choices that the paper leaves open."""

from theodolite_papers.ledger import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        "E1",
        "Eq. (4): squared Hilbert-Schmidt norm of the product of two kernels",
        "read literally this is the alignment of the squared kernels; the displays after it define "
        "the cosine of the two matrices, which is used",
    ),
    Erratum(
        "E2",
        "Eq. (3): sum over modes strictly below rho",
        "the text counts the first rho modes; the same curve, shifted by one. All modes, those "
        "with eigenvalue zero too, are in the denominator",
    ),
    Erratum(
        "E6",
        "the target kernel has rank C",
        "rank of the targets, at most C; C - 1 after the centring that CKA applies",
    ),
    Erratum(
        "E7",
        "48 runs",
        "the factors listed give 24; labels and Table I show the learning rate as a fifth factor, "
        "hence two rates, whose values are not given",
    ),
    Erratum(
        "E8",
        "11 convolutions, 10 probed layers of ranks 512 and 256 at the end",
        "the first convolution is not probed and maps are reduced over positions; the reducer is "
        "not named: max-pooling is judged, mean and flattening are shown",
    ),
    Erratum(
        "E9",
        "max-pooling after each residual block",
        "the network it derives from pools before its second block; here after each of three",
    ),
    Erratum(
        "E10",
        "weights N(0, 1/N) with Adam at rate 0.1",
        "does not train in the standard parametrisation; it does in the NTK parametrisation, which "
        "is judged. The literal setting is kept as a control",
    ),
    Erratum(
        "E11",
        "Eq. (8): trace of the tangent kernel over classes",
        "the trace divided by C; alignments do not change, eigenvalues do",
    ),
    Erratum(
        "E12",
        "Eq. (7): last layer's kernel plus a gradient term",
        "a trainable bias of the last layer adds 1 to the first term, a fixed output scale s "
        "multiplies both by its square; centring removes the former",
    ),
    Erratum(
        "E13",
        "Eq. (5): velocity of the outputs",
        "holds for half the sum of squared errors at unit rate, not for their mean",
    ),
    Erratum(
        "E14",
        "mode rho is learned at about 1 / eigenvalue examples",
        "presumes a kernel scaled so that the effective ridge is one; the scale-free condition is "
        "that ridge / P lies between the two eigenvalues",
    ),
    Erratum(
        "E15",
        "section VI: alignment, without centring",
        "CKA, as section III announces for the whole paper; the uncentred one is recorded too",
    ),
    Erratum(
        "E16",
        "CKA, spectra and tangent kernels on the training and test set",
        "numbers of examples are not given, and biased CKA depends on them: all are stated here, "
        "with debiased values and label permutations beside them",
    ),
    Erratum(
        "E18",
        "epochs 0, 25 and 5000 as beginning, middle and end",
        "25 is early; shorter runs are measured the second time after a proportional number of "
        "epochs",
    ),
    Erratum(
        "E19",
        "SGD with momentum, linearly falling rate, augmentation",
        "momentum, rates, weight decay, kind of augmentation and reduction of the loss are not "
        "given: 0.9, two rates, none, flip with translation and cutout, the mean. Outputs are "
        "multiplied by 0.2, as in the network it derives from: without that every rate above about "
        "0.04 diverges",
    ),
    Erratum(
        "E20",
        "Table I: CKA",
        "no layer is named; read as layer 10, with which the text contrasts the layer average. "
        "Loss is taken on clean training data",
    ),
    Erratum(
        "E21",
        "Eq. (1) and (2): infinitely many modes, and any target expands in them",
        "a layer's kernel has finite rank; the basis must be completed by modes of eigenvalue zero",
    ),
    Erratum(
        "E22",
        "higher CKA does not necessarily imply better accuracy",
        "Table I has 0.850 between the two on test data: the sentence is about single pairs of "
        "models, and so is the check",
    ),
    Erratum(
        "E23",
        "Figure 8: the last layer's kernel dominates the tangent kernel",
        "no number is given; its share is measured and reported here",
    ),
    Erratum(
        "E24",
        "runs above 95 % training accuracy are kept",
        "the kept runs are no balanced design; correlations among the factors are reported",
    ),
)
