"""What Prometheus reads: its format, its names, bounded labels, and the alerts and panels that are built on it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import insert

from tests.house.tree import ROOT
from tests.system import System, fill
from workers.ledger import nodes, schema, tallies
from workers.watch.exposition import Exposition, folded
from workers.watch.metrics import CODES, MODELS, metrics

UNITS = ("_seconds", "_bytes", "_total", "_documents", "_batches", "_messages", "_consumers", "_up", "_version", "_due", "_nodes", "_open")
UNITS += ("_outstanding", "_builds")


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    made = System(tmp_path / "home")
    made.inline(fill(tmp_path / "docs", 4, documents=2))
    yield made
    made.close()


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name → label values in the order of their names → value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


def scrape(system: System) -> dict[str, dict[tuple[str, ...], float]]:
    return read(metrics(system.platform.runtime))


def test_every_family_parses_has_help_and_is_named_as_prometheus_asks(system: System) -> None:
    text = metrics(system.platform.runtime)
    families = list(text_string_to_metric_families(text))
    assert len(families) > 15
    for family in families:
        assert re.fullmatch(r"dujiang_[a-z_]+", family.name) and family.documentation.endswith("."), family
        assert family.type in {"gauge", "counter", "histogram"}
        ours = f"{family.name}_total" if family.type == "counter" else family.name
        assert ours.endswith(UNITS) or ours == "dujiang_documents", ours
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))


def test_the_figures_are_those_of_the_ledger(system: System) -> None:
    found = scrape(system)
    assert found["dujiang_documents"] == {("done",): 6.0}
    spent = system.platform.run("run_1").usage["build"]
    assert sum(found["dujiang_model_requests_total"].values()) == spent.requests
    done = {stage: value for (outcome, stage), value in found["dujiang_batches_total"].items() if outcome == "done"}
    assert sum(done.values()) == system.rows("SELECT count(*) FROM batches WHERE status = 'done'")[0][0]
    for stage, number in done.items():
        buckets = [
            value for (_, of), value in sorted(found["dujiang_batch_seconds_bucket"].items(), key=lambda item: float(item[0][0])) if of == stage
        ]
        assert buckets == sorted(buckets) and buckets[-1] == number == found["dujiang_batch_seconds_count"][(stage,)]


def test_work_that_waits_shows_its_stage_its_queue_and_its_age(system: System, tmp_path: Path) -> None:
    system.ingest(fill(tmp_path / "more", 3), collection="more")
    found = scrape(system)
    assert found["dujiang_stage_documents"]["load", "ready"] == 3.0
    assert found["dujiang_queue_ready_documents"][("dujiang.parse.bulk",)] == 3.0
    assert found["dujiang_queue_oldest_seconds"][("dujiang.parse.bulk",)] >= 0.0


def test_who_feeds_and_sweeps_and_how_long_ago(system: System) -> None:
    assert "dujiang_sweep_age_seconds" not in scrape(system)
    nodes.announce(system.platform.db, "beat@a-1", "beat", 1, progress=True)
    nodes.announce(system.platform.db, "compute@a-2", "worker", 2, ("dujiang.parse.bulk",))
    found = scrape(system)
    assert found["dujiang_nodes"] == {("worker",): 1.0, ("supervisor",): 0.0, ("beat",): 1.0}
    assert found["dujiang_sweep_age_seconds"][()] < 60 and found["dujiang_beat_age_seconds"][()] < 60


def test_names_that_others_invent_do_not_become_series_without_end(system: System) -> None:
    with system.platform.db.write() as connection:
        rows = [{"owner": "question", "part": "reader", "model": f"m{n}", "input_tokens": n, "requests": 1, "at": 1.0} for n in range(60)]
        connection.execute(insert(schema.usage), rows)
        common = {
            "document_id": "d",
            "run_id": 1,
            "version": 1,
            "stage": "load",
            "outcome": "dead",
            "detail": "",
            "worker": "",
            "code_version": "",
            "at": 1.0,
        }
        connection.execute(insert(schema.attempts), [common | {"code": f"c{n}"} for n in range(90)])
        tallies.add(connection, {("provider_waits", (f"p{n}",)): 1.0 for n in range(90)})
    found = scrape(system)
    assert len({model for _, model, _ in found["dujiang_model_tokens_total"]}) == MODELS + 1
    assert len(found["dujiang_attempts_total"]) == CODES + 1
    assert len(found["dujiang_provider_waits_total"]) == CODES + 1
    assert sum(found["dujiang_attempts_total"].values()) == 90
    assert sum(value for (direction, _, part), value in found["dujiang_model_tokens_total"].items() if part == "reader") == sum(range(60))


def test_tenants_and_collections_are_labels_only_where_it_is_asked_for(system: System, tmp_path: Path) -> None:
    text = metrics(system.platform.runtime)
    assert "tenant=" not in text and "collection=" not in text and '"docs"' not in text
    told = System(tmp_path / "home", metrics_collections=True)
    assert scrape(told)["dujiang_collection_documents"] == {("docs", "default"): 6.0}
    told.close()


def test_no_document_is_named_in_the_metrics(system: System) -> None:
    assert "station" not in metrics(system.platform.runtime)


def test_what_the_answer_cache_did_is_counted(system: System) -> None:
    system.platform.runtime.figures.add("hit")
    system.platform.runtime.figures.add("miss")
    system.platform.runtime.figures.add("hit")
    assert scrape(system)["dujiang_questions_total"] == {("hit",): 2.0, ("miss",): 1.0}


def test_labels_are_escaped() -> None:
    out = Exposition()
    out.gauge("dujiang_x", "X.", ("name",), {('a"b\\c\nd',): 1.5})
    assert read(out.text()) == {"dujiang_x": {('a"b\\c\nd',): 1.5}}


def test_folding_keeps_the_largest_and_the_sum() -> None:
    samples: Mapping[tuple[str, ...], float] = {("x", "a"): 1.0, ("x", "b"): 5.0, ("y", "b"): 1.0, ("y", "c"): 2.0}
    assert folded(samples, 1) == {("x", "other"): 1.0, ("x", "b"): 5.0, ("y", "b"): 1.0, ("y", "other"): 2.0}


# ---------------------------------------------------------------- what is built on them


def exported(system: System, tmp_path: Path) -> set[str]:
    """Every name of a sample that may be exported."""
    told = System(tmp_path / "home", metrics_collections=True)
    nodes.announce(told.platform.db, "beat@a-1", "beat", 1)
    with told.platform.db.write() as connection:
        tallies.put(connection, "artifact_bytes", 1.0)
    text = metrics(told.platform.runtime)
    told.close()
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) | {"dujiang_broker_up", "dujiang_broker_unacked_messages"}
    return families | {
        "dujiang_batch_seconds_bucket",
        "dujiang_batch_seconds_sum",
        "dujiang_batch_seconds_count",
        "dujiang_worker_progress_age_seconds",
    }


@pytest.mark.parametrize("path", ["deploy/prometheus/alerts.yaml", "deploy/grafana/dujiang.json"])
def test_alerts_and_panels_ask_only_for_metrics_that_there_are(system: System, tmp_path: Path, path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    asked = set(re.findall(r"\bdujiang_[a-z_]+", text)) - {"dujiang_http_requests_total", "dujiang_http_request_seconds_bucket"}
    assert asked and asked <= exported(system, tmp_path), asked - exported(system, tmp_path)


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    board = json.loads((ROOT / "deploy/grafana/dujiang.json").read_text(encoding="utf-8"))
    assert board["uid"] == "dujiang" and board["panels"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    for panel in board["panels"]:
        assert panel["type"] == "row" or all(target["expr"] for target in panel["targets"]), panel["title"]
