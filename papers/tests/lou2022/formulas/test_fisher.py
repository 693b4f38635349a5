"""Loss derivatives in output space and the Fisher information: spec 4, P58 to P67."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.reference import tangent as reference
from tests.tolerances import assert_close
from theodolite.measures.tangent import centered_labels, stable_rank, stacked_kernel
from theodolite_papers.lou2022.formulas.feature_evolution import feature_kernel
from theodolite_papers.lou2022.formulas.fisher import (
    fisher_correlation,
    fisher_gram,
    fisher_information,
    fisher_stable_rank,
)
from theodolite_papers.lou2022.formulas.losses import (
    cross_entropy_gradient,
    cross_entropy_hessian,
    squared_error_hessian,
)

N, K, P = 5, 3, 4


@pytest.fixture
def features(generator):
    return torch.randn(N, K, P, generator=generator, dtype=torch.float64)


@pytest.fixture
def logits(generator):
    return 2 * torch.randn(N, K, generator=generator, dtype=torch.float64)


@pytest.fixture
def targets(generator):
    return torch.eye(K, dtype=torch.float64)[torch.randint(K, (N,), generator=generator)]


def matrix(gram):
    return gram.reshape(N * K, N * K)


@pytest.mark.spec("4.P58")
@pytest.mark.parametrize("soft", [False, True], ids=["one-hot", "probabilities"])
def test_cross_entropy_gradient_is_that_of_autograd(logits, targets, soft, generator):
    if soft:
        targets = torch.rand(N, K, generator=generator, dtype=torch.float64)
        targets = targets / targets.sum(1, keepdim=True)
    leaf = logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(cross_entropy(leaf, targets), leaf)
    assert_close(cross_entropy_gradient(logits, targets), expected)


@pytest.mark.spec("4.P58")
def test_cross_entropy_hessian_is_that_of_autograd(logits, targets):
    full = torch.autograd.functional.hessian(lambda f: cross_entropy(f, targets), logits)
    expected = torch.stack([full[x, :, x] for x in range(N)])
    assert_close(cross_entropy_hessian(logits), expected)
    assert_close(matrix(full), torch.block_diag(*expected))


@pytest.mark.spec("4.P58")
def test_squared_error_hessian_is_that_of_autograd(logits, targets):
    full = torch.autograd.functional.hessian(lambda f: (f - targets).square().sum(1).mean(), logits)
    assert_close(torch.block_diag(*squared_error_hessian(logits)), matrix(full))


def test_derivatives_agree_with_the_literal_reference(logits, targets):
    gradient = reference.cross_entropy_gradient(logits.numpy(), targets.numpy())
    assert_close(cross_entropy_gradient(logits, targets), gradient)
    assert_close(cross_entropy_hessian(logits), reference.cross_entropy_hessian(logits.numpy()))


@pytest.mark.spec("4.P59")
def test_hessian_blocks_are_positive_with_null_vector_of_ones(logits):
    blocks = cross_entropy_hessian(logits)
    values = torch.linalg.eigvalsh(blocks)
    assert (values > -1e-15).all()
    assert (values <= 1 / (2 * N)).all()
    assert_close(blocks.sum(2), torch.zeros(N, K))


@pytest.mark.spec("4.P59")
def test_largest_eigenvalue_is_reached_by_two_equal_classes():
    even = torch.tensor([[0.0, 0.0, -1e3]], dtype=torch.float64)
    assert_close(torch.linalg.eigvalsh(cross_entropy_hessian(even)).max(), 0.5)


def test_derivatives_of_a_saturated_softmax_keep_their_digits():
    logits = torch.tensor([[50.0, 0.0]], dtype=torch.float64)
    tail = torch.tensor(-50.0, dtype=torch.float64).exp()
    gradient = cross_entropy_gradient(logits, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    assert_close(gradient / tail, [[-1.0, 1.0]])
    assert_close(cross_entropy_hessian(logits) / tail, [[[1.0, -1.0], [-1.0, 1.0]]])


def test_fisher_forms_agree_with_the_literal_reference(features, logits):
    kernel, hessian = feature_kernel(features), cross_entropy_hessian(logits)
    gram = reference.fisher_gram(kernel.numpy(), hessian.numpy())
    information = reference.fisher_information(features.numpy(), hessian.numpy())
    assert_close(matrix(fisher_gram(kernel, hessian)), gram)
    assert_close(fisher_information(features, hessian), information)


@pytest.mark.spec("4.P60")
def test_parameter_and_output_forms_share_their_eigenvalues(features, logits):
    hessian = cross_entropy_hessian(logits)
    gram = fisher_gram(feature_kernel(features), hessian)
    information = fisher_information(features, hessian)
    assert_close(
        torch.linalg.eigvalsh(matrix(gram))[-P:], torch.linalg.eigvalsh(information), scale=10
    )
    assert_close(fisher_stable_rank(feature_kernel(features), hessian), stable_rank(information))


@pytest.mark.spec("4.P63")
@pytest.mark.parametrize("p", [1, 4, 40])
def test_fisher_has_no_more_rank_and_less_weight_than_the_kernel(p, logits, generator):
    features = torch.randn(N, K, p, generator=generator, dtype=torch.float64)
    information = fisher_information(features, cross_entropy_hessian(logits))
    kernel = stacked_kernel(feature_kernel(features), center=False)
    assert torch.linalg.matrix_rank(information) <= torch.linalg.matrix_rank(kernel)
    largest = torch.linalg.eigvalsh(information).max()
    assert largest <= torch.linalg.eigvalsh(kernel).max() / (2 * N)


@pytest.mark.spec("4.P64")
def test_squared_error_has_the_stable_rank_of_the_raw_kernel(features, logits):
    kernel = feature_kernel(features)
    value = fisher_stable_rank(kernel, squared_error_hessian(logits))
    assert_close(value, stable_rank(stacked_kernel(kernel, center=False)), scale=P)


@pytest.mark.spec("4.P65")
def test_fisher_correlation_is_its_sum_over_singular_vectors(features, logits, targets):
    kernel, hessian = feature_kernel(features), cross_entropy_hessian(logits)
    value = fisher_correlation(kernel, hessian, targets)
    expected = reference.fisher_correlation(kernel.numpy(), hessian.numpy(), targets.numpy())
    assert 0 <= value <= 1
    assert_close(value, expected)


@pytest.mark.spec("4.P66")
def test_another_factor_has_the_same_spectrum_and_another_correlation(features, logits, targets):
    p = logits.softmax(1)
    factors = torch.diag_embed(p.sqrt()) - torch.einsum("xi,xj->xij", p, p.sqrt())
    hessian = torch.diag_embed(p) - torch.einsum("xi,xj->xij", p, p)
    assert_close(factors @ factors.mT, hessian)
    B = torch.block_diag(*factors)
    kernel = feature_kernel(features)
    other = B.T @ matrix(kernel) @ B
    values = torch.linalg.eigvalsh(other)
    assert_close(values, torch.linalg.eigvalsh(matrix(fisher_gram(kernel, hessian))), scale=100)
    y = centered_labels(targets).flatten()
    correlation = y @ other @ y / (y @ y) / values[-1]
    assert (correlation - fisher_correlation(kernel, hessian, targets)).abs() > 1e-3


class TestSaturation:
    """Softmax so sure of itself that its curvature underflows."""

    @pytest.fixture
    def saturated(self, targets):
        return 1e4 * targets.roll(1, 1)

    @pytest.mark.spec("4.P67")
    def test_fisher_measures_are_undefined(self, features, saturated, targets):
        kernel, hessian = feature_kernel(features), cross_entropy_hessian(saturated)
        assert fisher_stable_rank(kernel, hessian).isnan()
        assert fisher_correlation(kernel, hessian, targets).isnan()

    def test_normalized_hessian_rescues_them(self, features, saturated, targets):
        kernel = feature_kernel(features)
        hessian = cross_entropy_hessian(saturated, normalize=True)
        assert_close(hessian.max(), 1.0)
        assert fisher_stable_rank(kernel, hessian) >= 1
        assert 0 <= fisher_correlation(kernel, hessian, targets) <= 1

    def test_float32_logits_are_rescued_too(self, features, targets):
        kernel, logits = feature_kernel(features).float(), (200 * targets).float()
        assert fisher_stable_rank(kernel, cross_entropy_hessian(logits)).isnan()
        rescued = fisher_stable_rank(kernel, cross_entropy_hessian(logits, normalize=True))
        exact = fisher_stable_rank(kernel.double(), cross_entropy_hessian(logits.double()))
        assert_close(rescued, exact, scale=P, dtype=torch.float32)

    @pytest.mark.parametrize("gap", [1.0, 30.0, 300.0])
    def test_normalization_changes_no_value(self, features, targets, gap):
        kernel = feature_kernel(features)
        plain = cross_entropy_hessian(gap * targets)
        scaled = cross_entropy_hessian(gap * targets, normalize=True)
        assert_close(fisher_stable_rank(kernel, scaled), fisher_stable_rank(kernel, plain), scale=P)

    @pytest.mark.parametrize(("factor", "defined"), [(1e-250, True), (1e-305, False)])
    def test_denormal_hessians_are_undefined(self, features, logits, factor, defined):
        kernel, hessian = feature_kernel(features), cross_entropy_hessian(logits)
        value = fisher_stable_rank(kernel, factor * hessian)
        assert_close(value, fisher_stable_rank(kernel, hessian) if defined else torch.nan)

    def test_one_class_has_no_curvature(self, generator):
        features = torch.randn(N, 1, P, generator=generator, dtype=torch.float64)
        kernel, logits = feature_kernel(features), torch.zeros(N, 1, dtype=torch.float64)
        hessian = cross_entropy_hessian(logits, normalize=True)
        assert torch.equal(hessian, torch.zeros(N, 1, 1, dtype=torch.float64))
        assert fisher_stable_rank(kernel, hessian).isnan()


def test_kernel_blind_to_what_the_softmax_sees_is_undefined(logits):
    # Equal tangent features of all outputs shift the logits together: the loss does not notice.
    features = torch.ones(N, K, 1, dtype=torch.float64) * torch.arange(1, N + 1).reshape(N, 1, 1)
    hessian = cross_entropy_hessian(logits)
    assert fisher_stable_rank(feature_kernel(features), hessian).isnan()


def test_undefined_fisher_stable_rank_has_gradient_zero_in_the_hessian(features):
    hessian = torch.zeros(N, K, K, dtype=torch.float64, requires_grad=True)
    fisher_stable_rank(feature_kernel(features), hessian).backward()
    assert torch.equal(hessian.grad, torch.zeros(N, K, K, dtype=torch.float64))


def test_gradient_of_fisher_stable_rank_reaches_the_logits(features, logits):
    kernel = feature_kernel(features)
    leaf = logits.clone().requires_grad_()
    fisher_stable_rank(kernel, cross_entropy_hessian(leaf)).backward()
    step = 1e-6
    direction = torch.linspace(-1, 1, N * K, dtype=torch.float64).reshape(N, K)
    ahead = fisher_stable_rank(kernel, cross_entropy_hessian(logits + step * direction))
    behind = fisher_stable_rank(kernel, cross_entropy_hessian(logits - step * direction))
    assert_close((leaf.grad * direction).sum(), (ahead - behind) / (2 * step), scale=1e2)
