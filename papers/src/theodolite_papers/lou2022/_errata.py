"""Errors of lou2022, and choices that the paper leaves open."""

from theodolite_papers.ledger import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        "X2",
        "Alignment lies in [0, 1], and is 1 only for colinear kernels (Remark 1).",
        "This needs positive semi-definite kernels, and colinearity of the centred ones.",
    ),
    Erratum(
        "X3",
        "With balanced classes the centred one-hot labels are about Y - 1/k.",
        "They are exactly that for any balance.",
    ),
    Erratum(
        "X4",
        "Theorem 1 has the limit 1/2 of the forward information.",
        "With the paper's own initialisation and inputs of squared length d it is 1: q*/2 with "
        "q* = 2 |x|^2 / d. Rates are not affected.",
    ),
    Erratum(
        "X5",
        "The backward information has a limit as the width grows.",
        "As defined it tends to 0; the products of gradients without the factor 1/N have a limit.",
    ),
    Erratum(
        "X6",
        "NTK parametrisation multiplies by 2 / sqrt(N).",
        "By sqrt(2 / N): otherwise variances would double in every layer.",
    ),
    Erratum(
        "X7",
        "Lemma 2 has no constant, and a positive sign before kappa log(l) / l.",
        "log b_l = -a log l + const - kappa log(l) / l + O(1/l). Theorem 2 survives: the constant "
        "cancels in ratios.",
    ),
    Erratum(
        "X8",
        "Theorem 2 holds uniformly over the domain.",
        "For opposite inputs the factor of layer 1 is 0, so products start at layer 2.",
    ),
    Erratum(
        "X9",
        "The step size is LR / n with the summed loss in places, LR with the mean loss in others.",
        "Mean loss and raw learning rate here; both give the same update.",
    ),
    Erratum(
        "X10",
        "Theorem A has an extra step size in its middle formula; its matrix is said to drive the "
        "label features too.",
        "Parameters follow I - eta/(L-1) H_w, label features I - eta H_w: equal for two layers "
        "only. At least two layers, no biases.",
    ),
    Erratum(
        "X11",
        "The Hessian of the squared loss in the outputs is the identity.",
        "It is twice the identity, or the loss has a factor 1/2.",
    ),
    Erratum(
        "X12",
        "The matrix of Appendix G is called the empirical Fisher.",
        "It is the model's Fisher on the given inputs, the Gauss-Newton matrix.",
    ),
    Erratum(
        "X13",
        "The root of the Fisher matrix is printed as S^(1/2) Psi.",
        "S^(1/2) Psi^T, with the symmetric root: the correlation depends on the choice.",
    ),
    Erratum(
        "X15",
        "Figure 5 calls the norm of an eigenvector's part in a layer its energy; U is not defined.",
        "Energies are squares and sum to 1; both are recorded. U is the identity here.",
    ),
    Erratum(
        "X16",
        "The last line of Eq. (25) has no alignment before its correction terms.",
        "A_l (1 - 2 eta m3/m2 + eta^2 m4/m2).",
    ),
    Erratum(
        "X17",
        "The peak is compared with a line of slope 3/5 over depths 10 to 100.",
        "3/5 is asymptotic. The exact balance has slopes of 0.7 to 1.0 there, so a measured 0.6 "
        "neither follows from it nor refutes it; both lines are given.",
    ),
    Erratum(
        "X18",
        "The error of the first-order change of features is of second order (Approximation 2).",
        "Only while no unit changes its sign. Features of ReLU networks jump there, and the sum of "
        "the jumps is of order sqrt(eta). Flips are counted, and the value without them is given.",
    ),
    Erratum(
        "X19",
        "Layer-wise training has a pair loss of the features below the layer.",
        "Of the features of the layer itself: the others do not depend on it.",
    ),
    Erratum(
        "X20",
        "Figure 4's caption: positive correlation between peak height and generalisation error.",
        "Between height and performance, as in the text.",
    ),
    Erratum(
        "X21",
        "Width 256 for Figure 3 in the text, 100 for MNIST and Fashion-MNIST in the tables; rate "
        "0.003 in Figure 2, 0.005 in Table 1 for depth 10 on CIFAR-10.",
        "The tables win for Figure 3.",
    ),
    Erratum(
        "X24",
        "Momentum, weight decay, most batch sizes, samples for the alignment, scaling of inputs, "
        "biases, treatment of batch norm, layers of convolutional networks, noise scales, depth "
        "and stopping of layer-wise training, seeds: not given.",
        "Momentum 0.9, weight decay 5e-4, batches of 128, 200 class-balanced training images, one "
        "standard deviation for all pixels, no biases in fully connected networks, batch norm in "
        "evaluation mode, linear and convolutional layers in order of execution.",
    ),
    Erratum(
        "X25",
        "Figures 16 to 18 train on 50,000 MNIST images.",
        "MNIST has 60,000; the first 50,000 of a random order here.",
    ),
)
