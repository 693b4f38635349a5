"""The tables go to one file and come back."""

import numpy as np
import pandas as pd
import pytest

from theodolite.errors import RecordError
from theodolite_papers.alignment_zoo.tables import Zoo, load, merge, save


def shard(name, value=0.123456789, half="pilot"):
    networks = pd.DataFrame({
        "network": [name], "half": half, "group": [3], "changed": ["base"], "data": ["digits"],
        "family": ["mlp"], "noise": [0.5], "reached": [True], "width": [192],
    })  # fmt: skip
    rows = pd.DataFrame({
        "network": name, "moment": ["init", "final"], "step": [0, 4000], "probe": "train",
        "layer": [-1, 0], "family": "kernel", "measure": ["a", "b"], "value": [value, np.nan],
    })  # fmt: skip
    return Zoo(networks, rows)


def test_what_was_saved_is_loaded_to_five_digits(tmp_path):
    save(shard("pilot-00-00"), tmp_path)
    zoo = load(tmp_path)
    (row, other) = zoo.measurements.to_dict("records")
    assert row["value"] == pytest.approx(0.123456789, rel=2e-5)
    assert np.isnan(other["value"])
    assert (row["layer"], other["step"], other["moment"]) == (-1, 4000, "final")
    (network,) = zoo.networks.to_dict("records")
    assert network["reached"] is True or network["reached"] == np.True_
    assert (network["network"], network["width"], network["noise"]) == ("pilot-00-00", 192, 0.5)
    assert zoo.curves.empty


def test_a_later_shard_replaces_the_rows_of_its_networks(tmp_path):
    merged = merge([shard("a", 1.0), shard("b", 2.0), shard("a", 3.0)])
    assert sorted(merged.networks["network"]) == ["a", "b"]
    first = merged.measurements.query("layer == -1").set_index("network")["value"]
    assert first.to_dict() == {"a": 3.0, "b": 2.0}


def test_merging_what_was_loaded_keeps_texts(tmp_path):
    save(shard("a"), tmp_path / "a")
    save(shard("b", half="judged"), tmp_path / "b")
    merged = merge([load(tmp_path / "a"), load(tmp_path / "b")])
    save(merged, tmp_path)
    judged = load(tmp_path).of_half("judged")
    assert list(judged.networks["network"]) == ["b"]
    assert set(judged.measurements["network"].astype(str)) == {"b"}


def test_a_table_without_its_key_columns_is_refused(tmp_path):
    with pytest.raises(
        RecordError, match=r"measurements: expected the columns.*\['moment'\] is missing"
    ):
        save(Zoo(measurements=shard("a").measurements.drop(columns="moment")), tmp_path)


def test_a_folder_without_tables_is_named(tmp_path):
    with pytest.raises(RecordError, match="expected the tables of the alignment zoo"):
        load(tmp_path)
