"""Features of images and sparse codes by loops over pixels and atoms, in float64."""

import math

import numpy as np


def hog(image, orientations=9, cell=8, block=2):
    """Histogram of oriented gradients of one image (channels, height, width)."""
    channels, height, width = image.shape
    rows, columns = height // cell, width // cell
    histogram = np.zeros((rows, columns, orientations))
    for y in range(rows * cell):
        for x in range(columns * cell):
            best, angle = -1.0, 0.0
            for c in range(channels):
                inside_y, inside_x = 0 < y < height - 1, 0 < x < width - 1
                down = image[c, y + 1, x] - image[c, y - 1, x] if inside_y else 0.0
                right = image[c, y, x + 1] - image[c, y, x - 1] if inside_x else 0.0
                if math.hypot(down, right) > best:
                    best = math.hypot(down, right)
                    angle = math.degrees(math.atan2(down, right)) % 180.0
            index = int(angle // (180.0 / orientations)) % orientations
            histogram[y // cell, x // cell, index] += best / cell**2
    blocks = []
    for i in range(rows - block + 1):
        for j in range(columns - block + 1):
            values = histogram[i : i + block, j : j + block].ravel()
            values = values / math.sqrt((values**2).sum() + 1e-10)
            values = np.minimum(values, 0.2)
            blocks.append(values / math.sqrt((values**2).sum() + 1e-10))
    return np.concatenate(blocks)


def sift(patch):
    """Descriptor of one 16 x 16 patch: every pixel votes into up to eight bins."""
    histogram = np.zeros((4, 4, 8))
    for y in range(16):
        for x in range(16):
            down = patch[y + 1, x] - patch[y - 1, x] if 0 < y < 15 else 0.0
            right = patch[y, x + 1] - patch[y, x - 1] if 0 < x < 15 else 0.0
            window = math.exp(-((y - 7.5) ** 2 + (x - 7.5) ** 2) / (2 * 8.0**2))
            vote = math.hypot(down, right) * window
            turn = (math.atan2(down, right) % (2 * math.pi)) / (2 * math.pi) * 8
            # Cell i is centred on pixel coordinate 4 i + 1.5.
            row, column = (y - 1.5) / 4, (x - 1.5) / 4
            for i in (math.floor(row), math.floor(row) + 1):
                for j in (math.floor(column), math.floor(column) + 1):
                    for k in (math.floor(turn), math.floor(turn) + 1):
                        if 0 <= i < 4 and 0 <= j < 4:
                            share = (1 - abs(row - i)) * (1 - abs(column - j)) * (1 - abs(turn - k))
                            histogram[i, j, k % 8] += share * vote
    values = histogram.ravel()
    if not values.any():
        return values
    values = np.minimum(values / math.sqrt((values**2).sum()), 0.2)
    return values / math.sqrt((values**2).sum())


def lasso(row, atoms, penalty, sweeps=400):
    """One sparse code by cyclic coordinate descent on the objective itself."""
    code = np.zeros(len(atoms))
    for _ in range(sweeps):
        for j, atom in enumerate(atoms):
            rest = row - code @ atoms + code[j] * atom
            slope, curvature = float(atom @ rest), float(atom @ atom)
            code[j] = math.copysign(max(abs(slope) - penalty, 0.0), slope) / curvature
    return code


def descend(dictionary, code_products, code_inputs):
    """One round of block descent over the atoms, projected on the unit ball."""
    D = np.array(dictionary)
    for j in range(len(D)):
        if code_products[j, j] == 0:
            continue
        atom = np.array(D[j])
        for m in range(D.shape[1]):
            fitted = sum(code_products[j, k] * D[k, m] for k in range(len(D)))
            atom[m] = D[j, m] + (code_inputs[j, m] - fitted) / code_products[j, j]
        D[j] = atom / max(1.0, math.sqrt((atom**2).sum()))
    return D


def standardized_image(image):
    """``(v - mean) / max(std, 1 / sqrt(N))`` over all values of one image."""
    values = [float(value) for value in np.asarray(image).ravel()]
    count = len(values)
    mean = math.fsum(values) / count
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / count)
    scaled = [(value - mean) / max(std, 1 / math.sqrt(count)) for value in values]
    return np.array(scaled).reshape(np.shape(image))
