"""Dense matrices and loops over outputs: features, Hessians and the stages of the prediction."""

import torch

from tests.reference.infinite_width import stacked_alignment


def flat_function(model, inputs):
    """theta -> outputs (n, c), with the module's own code."""
    named = list(model.named_parameters())

    def function(theta):
        pieces, start = {}, 0
        for name, parameter in named:
            pieces[name] = theta[start : start + parameter.numel()].reshape(parameter.shape)
            start += parameter.numel()
        return torch.func.functional_call(model, pieces, (inputs,))

    theta = torch.cat([p.detach().double().reshape(-1) for _, p in named])
    return function, theta


def features(function, theta):
    """Psi transposed (n, c, p), one backward pass per output."""
    theta = theta.clone().requires_grad_()
    outputs = function(theta)
    columns = [torch.autograd.grad(o, theta, retain_graph=True)[0] for o in outputs.flatten()]
    return torch.stack(columns).reshape(*outputs.shape, len(theta))


def hessians(function, theta):
    """One Hessian per example and output, (n, c, p, p)."""
    shape = function(theta).shape
    matrices = [
        torch.autograd.functional.hessian(lambda t, x=x, i=i: function(t)[x, i], theta)
        for x in range(shape[0])
        for i in range(shape[1])
    ]
    return torch.stack(matrices).reshape(*shape, len(theta), len(theta))


def alignment(psi, targets):
    """A_l of one layer with explicit m x m centring."""
    rows = psi.reshape(targets.numel(), -1)
    kernel = (rows @ rows.T).numpy()
    # stacked_alignment takes the factor of K = F (x) I; one "output" makes that the kernel itself.
    return stacked_alignment(kernel, targets.reshape(-1, 1).numpy())


def stages(psi, H_all, theta, w, targets, eta, layers):
    """Every stage of the prediction from dense matrices."""
    y = targets - targets.mean()
    H_w = torch.einsum("xi,xipq->pq", w, H_all)
    H_y = torch.einsum("xi,xipq->pq", y, H_all)
    P = len(theta)
    H = torch.eye(P, dtype=theta.dtype) - eta * H_w
    psi_y = torch.einsum("xip,xi->p", psi, y)
    psi_w = torch.einsum("xip,xi->p", psi, w)
    moved = psi - eta * torch.einsum("p,xi->xip", H_w @ psi_w, w) / (w * w).sum()
    rows = []
    for part in layers:
        M = torch.zeros(P, P, dtype=theta.dtype)
        M[part, part] = torch.eye(part.stop - part.start, dtype=theta.dtype)
        now = alignment(psi[..., part], y)
        m2, m3, m4 = (torch.trace(M @ torch.matrix_power(H_w, p)) for p in (2, 3, 4))
        rows.append(
            [
                now,
                alignment(moved[..., part], y),
                now * (M @ H @ psi_y).norm() ** 2 / (M @ psi_y).norm() ** 2,
                now * (M @ H @ H_y @ theta).norm() ** 2 / (M @ H_y @ theta).norm() ** 2,
                now * torch.trace(H_y @ H @ M @ H @ H_y) / torch.trace(H_y @ M @ H_y),
                now * (1 - 2 * eta * m3 / m2 + eta**2 * m4 / m2),
            ]
        )
    return torch.tensor(rows, dtype=torch.float64).T
