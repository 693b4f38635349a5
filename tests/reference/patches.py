"""Patches and covariances by loops over images, positions and taps, in float64."""

import numpy as np


def patches(images, kernel, stride, padding, dilation):
    """One row per patch, channel-major: ``(N, oh, ow, d)``."""
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = kernel, stride, padding, dilation
    count, channels, height, width = images.shape
    padded = np.zeros((count, channels, height + 2 * ph, width + 2 * pw))
    padded[:, :, ph : ph + height, pw : pw + width] = images
    oh = (height + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    ow = (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    rows = np.zeros((count, oh, ow, channels * kh * kw))
    for n in range(count):
        for y in range(oh):
            for x in range(ow):
                for c in range(channels):
                    for i in range(kh):
                        for j in range(kw):
                            value = padded[n, c, y * sh + i * dh, x * sw + j * dw]
                            rows[n, y, x, (c * kh + i) * kw + j] = value
    return rows


def covariance(rows, centered=True, ddof=0):
    """``1/(n - ddof) sum (x - mu)(x - mu)^T``, one outer product at a time."""
    center = rows.mean(0) if centered else np.zeros(rows.shape[1])
    total = np.zeros((rows.shape[1], rows.shape[1]))
    for row in rows:
        total += np.outer(row - center, row - center)
    return total / (len(rows) - ddof)
