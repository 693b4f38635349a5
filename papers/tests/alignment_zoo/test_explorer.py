"""The page where a reader chooses two numbers and sees the scatter."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from papers.tests.alignment_zoo.made import made_zoo
from tests.report import browser as driver
from theodolite_papers.alignment_zoo.explorer import write_explorer

CHOOSE = """const [id, value] = arguments, select = document.getElementById(id);
select.value = value; select.dispatchEvent(new Event("change"));
return [document.getElementById("told").textContent,
        document.querySelectorAll("#plot .point").length,
        [...document.querySelectorAll("#plot .xtitle")].map((e) => e.textContent).join()]"""


@pytest.fixture(scope="module")
def zoo():
    return made_zoo(groups=2)


@pytest.fixture(scope="module")
def page(zoo, tmp_path_factory):
    return write_explorer(zoo, tmp_path_factory.mktemp("page") / "zoo.html")


def test_the_page_holds_every_network_and_fetches_nothing(zoo, page):
    text = page.read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert data["networks"] == list(zoo.networks["network"])
    assert data["factors"]["noise"]["words"] == ["0", "0.5", "1"]
    assert "first final" in data["measures"]["cka_target"]["values"]
    assert "default-src 'none'" in text.replace("&#39;", "'")


@pytest.mark.skipif(driver.missing(), reason=f"needs a browser: {driver.INSTALL}")
def test_choosing_two_numbers_and_a_factor_draws_them(zoo, page, tmp_path):
    final = zoo.measurements
    final = final[(final["moment"] == "final") & (final["measure"] == "margin")]
    margin = final.set_index("network")["value"].reindex(zoo.networks["network"])
    tau = stats.kendalltau(margin, zoo.networks["gap"]).statistic
    mnist = int((zoo.networks["data"] == "mnist").sum())
    with driver.running_browser(tmp_path / "profile") as window:
        window.navigate(page)
        told, points, title = window.script(CHOOSE, "across", "measure margin")
        assert (points, title) == (len(zoo.networks), "margin, at the end")
        shown = float(told.split()[2].replace("−", "-"))
        assert shown == pytest.approx(tau, abs=0.0051)
        window.script(CHOOSE, "factor", "data")
        told, points, _ = window.script(CHOOSE, "level", "mnist")
        assert points == mnist
        assert f"over {mnist} networks" in told
        assert window.log() == []
    assert np.isfinite(tau)
