"""Figure 3, and filters in Appendix D.1: their eigenvectors compared with those of patches."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from theodolite.engine import weight_covariance
from theodolite.measures.covariance import subspace_overlap
from theodolite_papers.lab.models import wide_resnet
from theodolite_papers.lab.training import train
from theodolite_papers.ledger import (
    Claim,
    Line,
    Measured,
    Outcome,
    Panel,
    Results,
    Study,
    Tiles,
    Trial,
    above,
    below,
    decided,
    in_order,
    mean_and_error,
    named,
)
from theodolite_papers.maennel2020._filters import (
    FilterTraining,
    as_images,
    covariance_of,
    drawn_data,
    eigenvectors,
    same_sign,
    trained_filters,
)
from theodolite_papers.maennel2020._transfer import Images, Network
from theodolite_papers.maennel2020.formulas.overlap import eigenvector_overlap, match_eigenvectors

__all__ = ["STUDY", "PooledFilters"]

_ID = "maennel2020.fig3"


@dataclass(frozen=True)
class PooledFilters:
    """Size of the experiment.

    Args:
        training: of each network, on random labels.
        runs: networks whose filters are pooled; an even number, half of them a group.
        leading: weight eigenvectors that are matched.
        residual: whether they are wide residual networks with a 5x5 first convolution.
        side: of a filter.
        init_scale: factor of the residual networks' initial weights.
    """

    training: FilterTraining
    runs: int = 70
    leading: int = 10
    residual: bool = True
    side: int = 5
    init_scale: float = 0.01


def measure(config: PooledFilters, trial: Trial) -> Measured:
    """Matches of the leading eigenvectors, and overlaps between two halves of the networks."""
    data = drawn_data(config.training, trial, "random")
    sigma = covariance_of(data[0], config.side)
    groups = [_filters(config, trial, data, run) for run in range(config.runs)]
    filters = torch.cat(groups)
    weights = weight_covariance(filters)
    match = match_eigenvectors(sigma, weights, count=config.leading)
    arrays = {
        "weight_values": match.weight_eigenvalues.float().numpy(),
        "quality": match.quality.float().numpy(),
    }
    numbers = {
        "fewest_partners": float(match.counts.min()),
        "median_quality": float(match.quality.median()),
        "median_single": float(_best_overlap(filters, sigma).median()),
    }
    numbers |= _halves(config, groups, data[0], arrays)
    return Measured(numbers, arrays | _pictures(config, sigma, weights, filters))


def _halves(
    config: PooledFilters, groups: list[Tensor], images: Tensor, arrays: dict[str, np.ndarray]
) -> dict[str, float]:
    """Overlaps of eigenvectors between halves of the networks, and of the images."""
    middle = len(groups) // 2
    first, second = (weight_covariance(torch.cat(g)) for g in (groups[:middle], groups[middle:]))
    ranked = eigenvector_overlap(first, second).ranked[: config.leading]
    parts = [covariance_of(images[start::2], config.side) for start in (0, 1)]
    of_data = eigenvector_overlap(parts[0], parts[1]).ranked[: config.leading]
    arrays["weight_overlaps"] = ranked.float().numpy()
    arrays["data_overlaps"] = of_data.float().numpy()
    pair = _closest_pair(weight_covariance(torch.cat(groups)), config.leading)
    return {
        "plane_overlap": float(subspace_overlap(first, second, pair)),
        "vector_overlap": float(ranked[pair].square().mean()),
    }


def _filters(config: PooledFilters, trial: Trial, data: tuple[Tensor, Tensor], run: int) -> Tensor:
    if not config.residual:
        network, _ = trained_filters(config.training, trial, data, 10 + run, None)
        weight = network.get_parameter("conv1.weight")
    else:
        model = wide_resnet(generator=trial.generator(10 + run)).to(trial.device)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(config.init_scale)
        train(model, data, config.training.recipe(trial.seed * 100 + run))
        weight = model.get_parameter("stem.weight")
    return weight.detach().cpu().double().flatten(1)


def _best_overlap(filters: Tensor, sigma: Tensor) -> Tensor:
    """Largest overlap of each single filter with an eigenvector of the data."""
    centered = filters - filters.mean(0)
    unit = centered / centered.norm(dim=1, keepdim=True)
    return (unit @ eigenvectors(sigma, len(sigma)).mT).abs().amax(1)


def _closest_pair(weights: Tensor, leading: int) -> list[int]:
    values = torch.linalg.eigvalsh(weights).flip(0)[:leading]
    first = int((values[1:] / values[:-1]).argmax())
    return [first, first + 1]


def _pictures(
    config: PooledFilters, sigma: Tensor, weights: Tensor, filters: Tensor
) -> dict[str, np.ndarray]:
    """Weight eigenvectors, the best data eigenvector, the combination, and single filters."""
    vectors = eigenvectors(weights, config.leading)
    basis = eigenvectors(sigma, len(sigma))
    products = vectors @ basis.mT
    best = basis[products.abs().argmax(1)]
    chosen = torch.where(products.abs() > 0.4, products, 0.0)
    rows = {
        "picture_weights": vectors,
        "picture_data": same_sign(best, vectors),
        "picture_combined": chosen @ basis,
        "picture_single": filters[: config.leading],
    }
    return {name: as_images(row, config.side).astype(np.float16) for name, row in rows.items()}


def _matched(runs: Results) -> Outcome:
    found = runs.means(named("fewest_partners", "median_quality"))
    return decided(
        above("fewest_partners", found["fewest_partners"], 1, strict=False),
        above("median_quality", found["median_quality"], 0.7),
    )


def _weights_vaguer(runs: Results) -> Outcome:
    run = runs.first
    excess = run.arrays["weight_overlaps"] - run.arrays["data_overlaps"]
    numbers = {f"rank_{k + 1}": v for k, v in enumerate(run.arrays["weight_overlaps"])}
    of_data = {f"patches_{k + 1}": v for k, v in enumerate(run.arrays["data_overlaps"])}
    return decided(below("largest_excess", float(excess.max())), **numbers, **of_data)


def draw(runs: Results) -> list[Panel]:
    """Filters and eigenvectors as images, and overlaps by rank."""
    run = runs.first
    names = {
        "picture_single": "single filters",
        "picture_weights": "eigenvectors of the filters",
        "picture_data": "best eigenvector of the data",
        "picture_combined": "combination of its partners",
    }
    images = np.stack([run.arrays[key].astype(np.float32) for key in names])
    ranks = np.arange(1, len(run.arrays["weight_overlaps"]) + 1)
    lines = [
        Line(title, ranks, *mean_and_error(runs.array(key)))
        for key, title in (("data_overlaps", "patches"), ("weight_overlaps", "filters"))
    ]
    return [
        Panel("Figure 3", [Tiles(images, list(names.values()))]),
        Panel("Appendix D.1, two halves", lines, "rank", "overlap of eigenvectors"),
    ]


_LITE = FilterTraining(
    Network(conv_layers=1, filters=128, units=64, padding="valid", first_scale=0.3),
    Images(crop=8),
    512,
    50,
    0.05,
    64,
)

STUDY = Study(
    id=_ID,
    title="Eigenvectors of filters beside those of patches",
    shows=("Figure 3", "Appendix D.1 (weights)"),
    measure=measure,
    configs={
        "smoke": PooledFilters(
            replace(
                _LITE,
                network=Network(conv_layers=1, filters=16, units=8),
                images=Images("digits"),
                examples=64,
                epochs=1,
            ),
            runs=4,
            leading=5,
            residual=False,
            side=3,
        ),
        "lite": PooledFilters(_LITE, runs=4, leading=5, residual=False, side=3),
        "published": PooledFilters(FilterTraining(epochs=1800, learning_rate=0.005)),
    },
    claims=(
        Claim(
            f"{_ID}.matched",
            "every leading eigenvector of the filters has a partner above 0.4 among those of the "
            "patches, and the median quality of the matches is above 0.7",
            _matched,
        ),
        Claim(
            f"{_ID}.single",
            "single filters look unlike them: their median best overlap is lower",
            in_order({"single_filters": "median_single", "eigenvectors": "median_quality"}),
        ),
        Claim(
            f"{_ID}.vaguer",
            "Appendix D.1: between two halves of the networks eigenvectors of filters overlap less "
            "than those of patches between two halves of the images, at every leading rank",
            _weights_vaguer,
            published={
                f"rank_{k + 1}": value
                for k, value in enumerate((0.974, 0.958, 0.916, 0.934, 0.861))
            },
        ),
        Claim(
            f"{_ID}.plane",
            "Appendix D.1: the plane of the closest pair of eigenvalues overlaps more than its "
            "vectors do (squared)",
            in_order({"plane": "plane_overlap", "vectors_squared": "vector_overlap"}, falling=True),
        ),
    ),
    draw=draw,
    stand_in={
        "smoke": "8x8 digits in the place of CIFAR-10",
        "lite": "four runs of the small network of Figure 2, 3x3 filters, the leading five",
    },
    not_run={"published": "70 wide residual networks of 1,800 epochs need a cluster"},
)
