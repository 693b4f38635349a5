"""Figures are SVG that shows every row at its value."""

from xml.etree import ElementTree

import numpy as np
import pytest

from theodolite_papers.alignment_zoo.figures import coverage_figure, figure

SVG = "{http://www.w3.org/2000/svg}"


def test_values_are_in_order_and_labels_are_escaped():
    rows = [("a < b", 0.8, 0.5, 0.9, False), ("c", 0.2, float("nan"), float("nan"), True)]
    drawn = ElementTree.fromstring(figure(rows, "tau", 0.0))
    texts = [one.text for one in drawn.iter(f"{SVG}text")]
    assert {"a < b", "c", "tau", "alignment", "baseline"} <= set(texts)
    first, second = list(drawn.iter(f"{SVG}circle"))[:2]
    ticks = {one.text: float(one.get("x")) for one in drawn.iter(f"{SVG}text")}
    width = ticks["0.8"] - ticks["0"]
    assert float(first.get("cx")) == pytest.approx(ticks["0"] + width, abs=0.1)
    assert float(second.get("cx")) == pytest.approx(ticks["0"] + width / 4, abs=0.1)
    assert first.get("fill") != second.get("fill")


def test_the_rule_stands_at_its_coverage():
    drawn = ElementTree.fromstring(
        coverage_figure(np.array([0.5, 1.0]), np.array([0.0, 0.1]), (0.5, 0.0))
    )
    (line,) = drawn.iter(f"{SVG}polyline")
    point = next(drawn.iter(f"{SVG}circle"))
    assert line.get("points").split()[0] == f"{point.get('cx')},{point.get('cy')}"
