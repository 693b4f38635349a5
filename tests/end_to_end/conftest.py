import pytest

from tests.unchecked import unchecked


@pytest.fixture(autouse=True, scope="module")
def _as_a_user():
    """Demo, examples and pages run as users run them; all they call is checked in its own tests."""
    with unchecked():
        yield
