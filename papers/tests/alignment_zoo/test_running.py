"""A network from start to end, shards, and the command."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from theodolite.errors import RecordError
from theodolite.records import FAMILIES
from theodolite_papers.alignment_zoo import running
from theodolite_papers.alignment_zoo.design import HALVES, networks
from theodolite_papers.alignment_zoo.running import gather, run_networks
from theodolite_papers.alignment_zoo.schema import SCHEMA
from theodolite_papers.alignment_zoo.tables import RECORDS, load
from theodolite_papers.commands.zoo import zoo_app


def _small():
    found = [one for one in networks("pilot") if one.data == "cancer"][:2]
    return [replace(one, depth=1, width=12, examples=160) for one in found]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two small networks, trained for three steps."""
    folder = tmp_path_factory.mktemp("shards")
    failures = run_networks(_small(), folder, limit=3)
    assert not failures
    return folder


def test_every_family_is_measured_at_every_moment_on_both_probes(shards):
    table = gather(shards).measurements
    assert set(table["family"]) == {*FAMILIES, "baseline"}
    for _, rows in table.groupby(["network", "moment", "probe"], observed=True):
        assert set(FAMILIES) <= set(rows["family"])
    keys = ["network", "moment", "probe", "layer", "family", "measure"]
    assert not table.duplicated(keys).any()
    assert table["value"].notna().mean() > 0.9


def test_the_schema_names_every_column(shards):
    found = gather(shards)
    for table in ("networks", "measurements", "curves"):
        assert set(getattr(found, table)) == set(SCHEMA[table])


@pytest.mark.skipif(not (RECORDS / "zoo.npz").exists(), reason="only beside the records")
def test_the_published_tables_are_those_of_the_schema_and_of_the_design():
    found = load()
    assert json.loads((RECORDS / "schema.json").read_text()) == SCHEMA
    for table, columns in SCHEMA.items():
        assert set(getattr(found, table)) <= set(columns)
        assert len(set(columns) - set(getattr(found, table))) <= 2
    planned = {one.name: one for half in HALVES for one in networks(half)}
    for row in found.networks.to_dict("records"):
        one = planned[row["network"]]
        assert (row["noise"], row["rate"], row["depth"]) == (one.noise, one.rate, one.depth)


def test_covariances_are_there_for_every_block(shards):
    table = gather(shards).measurements
    chosen = table[(table["measure"] == "misalignment") & (table["probe"] == "train")]
    counts = table.groupby("network", observed=True)["layer"].max()
    for name, rows in chosen.groupby("network", observed=True):
        assert set(rows["layer"]) == set(range(counts[name] + 1))


def test_outcomes_and_evidence_stand_beside_the_factors(shards):
    networks_ = gather(shards).networks
    assert len(networks_) == 2
    gap = networks_["train_accuracy"] - networks_["test_accuracy_as_given"]
    assert networks_["gap"].to_numpy() == pytest.approx(gap.to_numpy(), abs=1e-4)
    assert networks_["fit_examples"].tolist() == [160, 160]
    assert networks_["input_neighbours"].between(0, 1).all()


def test_curves_hold_a_row_for_every_checkpoint(shards):
    curves = gather(shards).curves
    assert sorted(set(curves["step"])) == [0, 3]
    assert curves["cka_target_last"].notna().all()


def test_networks_that_have_a_shard_are_not_run_again(shards, monkeypatch):
    def refuse(*_):
        raise AssertionError("run again")

    monkeypatch.setattr(running, "measure_network", refuse)
    assert run_networks(_small(), shards, limit=3) == []


def test_after_the_last_second_no_network_is_begun(tmp_path):
    (failure,) = run_networks(networks("judged")[:1], tmp_path, seconds=-1.0)
    assert "no time was left" in failure.reason


def test_a_folder_without_shards_says_what_it_should_hold(tmp_path):
    with pytest.raises(RecordError, match=r"zoo\.npz, found none"):
        gather(tmp_path)


def test_the_command_gathers_shards(shards, tmp_path):
    found = CliRunner().invoke(zoo_app, ["gather", "--shards", str(shards), "-o", str(tmp_path)])
    assert found.exit_code == 0
    assert "2 networks" in found.output
    assert len(load(tmp_path).networks) == 2
    assert json.loads((tmp_path / "schema.json").read_text()) == SCHEMA
