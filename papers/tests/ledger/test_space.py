import pytest

from theodolite.errors import DomainError
from theodolite_papers.ledger import LogUniform, Space, Uniform, point_name


def test_a_grid_has_every_combination_once():
    points = Space({"a": [1, 2, 3], "b": ["x", "y"]}).points()
    assert len(points) == 6
    assert len({tuple(sorted(point.items())) for point in points}) == 6


def test_no_settings_are_one_point():
    assert Space().points() == [{}]


def test_draws_are_equal_for_equal_seeds_and_inside_their_bounds():
    space = Space(
        {"a": [1, 2]}, {"u": Uniform(2.0, 3.0), "l": LogUniform(1e-4, 1.0), "c": [5, 7]}, 50, 3
    )
    points = space.points()
    assert points == space.points()
    assert len(points) == 100
    assert all(2 <= p["u"] <= 3 and 1e-4 <= p["l"] <= 1 and p["c"] in (5, 7) for p in points)
    assert 20 < sum(p["l"] < 1e-2 for p in points) < 80  # half of the decades


def test_other_seeds_draw_other_points():
    draws = {"u": Uniform(0.0, 1.0)}
    assert Space(draws=draws, seed=1).points() != Space(draws=draws, seed=2).points()


def test_names_tell_points_apart_but_not_their_order():
    assert point_name({"a": 1, "b": 2}) == point_name({"b": 2, "a": 1})
    assert point_name({"a": 1}) != point_name({"a": 2})
    assert point_name({}) == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(({"a": []},), "at least one value for \\['a'\\]"), (({"a": [1]}, {"a": [2]}), "once")],
    ids=["empty", "twice"],
)
def test_spaces_that_make_no_sense_are_refused(arguments, message):
    with pytest.raises(DomainError, match=message):
        Space(*arguments)
