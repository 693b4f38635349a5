"""Errors of mehta2021, and choices that the paper leaves open."""

from theodolite_papers.ledger import Erratum

__all__ = ["ERRATA"]

ERRATA = (
    Erratum(
        "E1",
        "Theorem 1: sin features of two inputs have inner products of at most "
        "h exp(-sigma^2 |x - x'|^2 / 2), proved for the absolute value",
        "the absolute value fails for opposite inputs (x' = -x gives h/2); without it the bound "
        "holds, even with h/2; the corrected one takes the smaller of |x - x'| and |x + x'|",
    ),
    Erratum(
        "E2",
        "columns of the top layer's gradient are proportional to the features",
        "with weights of shape (classes, units) it is the rows",
    ),
    Erratum(
        "E3",
        "cosine stiffness needs all pairs of gradients",
        "of gradients divided by their norms the linear-time identity of the alignment holds",
    ),
    Erratum(
        "E4",
        "the softmax has n outputs, and gradient p - y at any temperature",
        "it has one per class, and its gradient carries a factor 1/T",
    ),
    Erratum(
        "E5",
        "at vanishing scale all logit gradients agree and alignment is 1",
        "within a class; over all pairs of a balanced set it is -1/(n - 1) for softmax and hinge",
    ),
    Erratum(
        "E6",
        "at large scale the indicators of the hinge are independent",
        "they share the logit of the true class: alignment 0.929 instead of 0.911 for ten classes",
    ),
    Erratum(
        "E7",
        "Figures 1(b), 2(c) and 4(c) show gradient alignment, of a layer that is not named",
        "read as the hidden layer: Figure 12 gives top and logit gradients as the other panels; "
        "the step is not given either, so means from the start to the fit are taken",
    ),
    Erratum(
        "E8",
        "squared loss: half the squared distance",
        "the authors' program takes the mean over the classes; the figures here do too",
    ),
    Erratum(
        "E9",
        "scaling the outputs scales the margin of the hinge alike",
        "outputs times a are a margin divided by a and a loss times a",
    ),
    Erratum(
        "E10",
        "the softmax argument carries over to a sigmoid output",
        "with two classes all logit gradients of a class are parallel at every scale",
    ),
    Erratum(
        "E11",
        "nothing is learnt about other examples if inner products of gradients are at most small",
        "their absolute values must be small",
    ),
    Erratum(
        "E12",
        "gradient confusion is mostly affected by the ratio of the norms",
        "by their product; by the ratio where one norm is fixed, as in Figure 3",
    ),
    Erratum(
        "E14",
        "no word on the inputs, without which sigma means nothing",
        "each image is standardised by itself, as in the authors' program",
    ),
    Erratum(
        "E16",
        "scaled layers and widths of deeper nets, stems of the deep nets, sigmas, seeds and "
        "lengths of the runs are not given",
        "the first layer alone is scaled; standard ImageNet stems; sigmas of the program's "
        "read-me; runs end at 100 % training accuracy",
    ),
    Erratum(
        "E17",
        "alignment on CIFAR-100 is a mean over its classes",
        "the authors' program takes ten of them",
    ),
    Erratum(
        "E18",
        "architectures with more aligned representations generalise better (Figure 5)",
        "alignment is not centred: an untrained ConvNet can have more of it than a trained fully "
        "connected net; the contrast removes what all examples share",
    ),
    Erratum(
        "E19",
        "chance level of SVHN is a tenth",
        "always answering 1 scores 19.6 %",
    ),
    Erratum(
        "E21",
        "temperature, margin or target scale undo the scale of initialisation",
        "they restore the alignment at the start; the same course of training needs other "
        "learning rates too",
    ),
)
