"""Errors of maennel2020, and choices that the paper leaves open."""

from theodolite_papers.ledger import Erratum

__all__ = ["ERRATA"]

ERRATA: tuple[Erratum, ...] = (
    Erratum(
        "E1",
        "D.4: the distance D is the average of the two KL divergences, and half of the integral of "
        "the Fisher information, and tr(..)/2 - d",
        "the last is twice the others: the sum of the divergences and the full integral; it is the "
        "one that Definition 2 and Proposition 2 use, and the one adopted",
    ),
    Erratum(
        "E2",
        "the straight line of covariances is called the e-geodesic",
        "it is the m-geodesic; the line of inverses is the e-geodesic. The integral is the same",
    ),
    Erratum(
        "E3",
        "no simple formula is known for the geodesic distance",
        "for a fixed mean there is one: the root of half the sum of squared logarithms of the "
        "generalised eigenvalues",
    ),
    Erratum(
        "E4",
        "the proof of Proposition 1 covers Adam and AdaGrad",
        "scaling by coordinates does not commute with rotations; it covers them only for signed "
        "permutations, or full-matrix AdaGrad",
    ),
    Erratum(
        "E5",
        "A.6: the sum of square roots, minus 1",
        "the 1 is subtracted inside the sum, d times in all",
    ),
    Erratum(
        "E6",
        "re-scaling a layer's weight and bias does not change predictions",
        "true only where later biases are zero; the studies use the literal rule",
    ),
    Erratum(
        "E7",
        "A.11 and F: Figures 10 and 11 extend Figure 8, top and bottom row; the negative VGG16 run "
        "has learning rate 0.01",
        "they extend Figure 7, rows the other way round; A.5 lists 0.009, which is used",
    ),
    Erratum("E8", "ImageNet A: upstream epochs are not listed", "100, as in Figure 18"),
    Erratum(
        "E9",
        "A.8: pairs of squares are plotted in Figure 4, used to produce Figure 2",
        "Definition 3 maps standard deviations, which are plotted; Figure 4 is meant",
    ),
    Erratum(
        "E10",
        "Figure 3: inner products above 0.4; 70.64 filters",
        "absolute values, since eigenvectors have no sign; 70 times 64",
    ),
    Erratum(
        "E11",
        "Tables 5 and 6 are even below the standard initialization; initialising matches the "
        "transfer of three layers; everything improves with the number of layers",
        "Table 6 is above it at 1000 iterations with two or three layers; the match fails for "
        "training accuracy at 1000 (.68 against .78); test accuracies have ties and inversions, "
        "and one layer is worse than none at 100 iterations in Tables 2 to 4",
    ),
    Erratum(
        "E13",
        "27 million 5x5 patches of 30,000 images",
        "28x28 positions give 23.5 million; 30x30 are the positions of 3x3 patches",
    ),
    Erratum(
        "E14",
        "eigenvalues of the weights: 0.281, 0.202, .. (D.1) and 0.019, 0.017, .. (Figure 3)",
        "scales 12 to 15 times apart for one experiment: only ratios and overlaps are compared",
    ),
    Erratum(
        "E15",
        "D.3: A is discontinuous, for all lambda other than 0",
        "M is, and lambda other than 1 is meant",
    ),
    Erratum(
        "E16",
        "invariance to scale is an advantage over the asymmetric divergence",
        "that one is jointly invariant too, and has closed forms as well",
    ),
    Erratum(
        "E17",
        "Figure 4 left rises and falls, Figure 20 right only rises, for seemingly one network",
        "samples presumably differ; 10,000 and 2,000 are used",
    ),
    Erratum(
        "E19",
        "the wide residual network has 64 filters in its first convolution, by the counts",
        "the standard network has 16; 64 are used",
    ),
    Erratum(
        "E20",
        "Proposition 1 explains networks trained on images",
        "these have overlapping, padded, non-Gaussian patches: there alignment is an observation",
    ),
    Erratum(
        "E21",
        "init scales of Figures 2 and 4, batch size of E.3, tau curves, filters and rates of E.1, "
        "E.2 and F, bins, number of random bases, normalisation of areas, padding are missing",
        "each is named where a study chooses it",
    ),
    Erratum(
        "E22",
        "Figure 2: the misalignment is very small",
        "256 perfectly aligned filters in 27 dimensions score 1.5 by sampling alone: the floor is "
        "always shown",
    ),
    Erratum(
        "E23",
        "Table 4: filters are sampled with tau = 1 on 16 directions",
        "these have norm 4, not 1, and three such layers do not train in a small network: norms "
        "are matched",
    ),
    Erratum(
        "E24",
        "axes of Figures 12 to 15 are not labeled",
        "below the diagonal is faster, so pre-trained runs are on the horizontal axis",
    ),
    Erratum(
        "E25",
        "Section 2.1 has SGD, Appendix C proves a deterministic step",
        "batches are part of the condition: the rotated run sees the same ones",
    ),
    Erratum(
        "E26",
        "D.1: overlaps of ranks 9 and 10 are .990, and all of 75 above 0.975",
        "in the official order of the images these two are .9999, and six others mix in close "
        "pairs; ranks 1 to 8 and planes of pairs are judged",
    ),
    Erratum(
        "E27",
        "E.3: learning rate 0.002; neither optimizer nor batch size is given",
        "with momentum and batches of 256 the standard start is faster than printed (.38 and .69, "
        "not .31 and .58), and three set layers are unsteady; at a third of the rate (the control) "
        "it is as fast as printed",
    ),
    Erratum(
        "E28",
        "A.3: whether the init scale multiplies the standard deviation or the variance of the "
        "weights is not said",
        "taken as the standard deviation, except in Figure 1: there VGG16 at 0.526 and 0.612 of it "
        "stays at chance for tens of epochs, and as factors of the variance both train",
    ),
)
