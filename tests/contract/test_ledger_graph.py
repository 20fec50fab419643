"""Documents on their way into the graph, on SQLite and on PostgreSQL alike: behind the index, once for each version, found again after any loss."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.contracts import Stage
from tests.contract.test_ledger import begin, collection, finish
from workers.ledger import catalog, graphing, losses, removal, sweeping
from workers.ledger.engine import Database
from workers.ledger.graphing import Claimed, Stopped
from workers.ledger.work import CollectionRow, Issue

BY = "terms:1"


def claim(db: Database, issue: Issue, lease_s: float = 60.0) -> Claimed:
    found = graphing.claim(db, issue.batch_id, issue.token, "node-1:1:1", lease_s=lease_s, deadline_s=600.0)
    assert found is not None
    return found


def form(db: Database, row: CollectionRow, by: str = BY) -> list[Issue]:
    return graphing.form(db, catalog.find(db, row.tenant, row.name), by)


def done(db: Database, issue: Issue, stopped: Sequence[Stopped] = ()) -> list[str]:
    """Names of the documents that were in the batch."""
    claimed = claim(db, issue)
    assert graphing.commit(db, claimed, stopped, 0.1)
    return [wanted.document_id.rpartition("-")[2] for wanted in claimed.documents]


def drain(db: Database, row: CollectionRow, by: str = BY) -> list[str]:
    """Everything that a collection's graph wants, until nothing is pending."""
    names: list[str] = []
    while any(one.id == row.id for one in graphing.pending(db, by)):
        for issue in form(db, row, by):
            assert (issue.stage, issue.queue) == (Stage.GRAPH, "dujiang.graph.bulk")
            names += done(db, issue)
    return names


def test_what_is_indexed_goes_into_the_graph_once_and_a_look_without_news_forms_nothing(db: Database) -> None:
    row = collection(db)
    begin(db, row, "abc")
    assert drain(db, row) == [], "nothing is indexed yet"
    finish(db)
    assert drain(db, row) == ["a", "b", "c"]
    assert graphing.pending(db, BY) == []
    stands = graphing.progress(db, row, BY)
    assert (stands.documents, stands.done, stands.waiting, stands.failed) == (3, 3, 0, 0)


def test_only_what_changed_goes_again(db: Database) -> None:
    row = collection(db)
    begin(db, row, "abc")
    finish(db)
    drain(db, row)
    begin(db, row, "b", hash_="other")
    finish(db)
    assert drain(db, row) == ["b"]


def test_another_extractor_goes_through_everything(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    finish(db)
    drain(db, row)
    assert drain(db, row, "light:1") == ["a", "b"]


def test_a_batch_whose_worker_died_is_formed_anew_one_by_one_and_the_culprit_is_quarantined(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    finish(db)
    for _ in range(losses.POISON_AFTER + 3):
        issues = form(db, row)
        for issue in issues:
            claimed = claim(db, issue)
            names = [wanted.document_id[-1] for wanted in claimed.documents]
            if "a" in names:
                assert losses.expire(db, issue.batch_id, issue.token, reason="killed") == []
            else:
                assert graphing.commit(db, claimed, (), 0.1)
    stands = graphing.progress(db, row, BY)
    assert (stands.done, stands.failed) == (1, 1)
    ((_, key, code, _),) = graphing.failures(db, row.id)
    assert (key, code) == ("a", "poison")
    assert graphing.again(db, row.id) == 1
    assert drain(db, row) == ["a"]


def test_a_lost_message_is_sent_again_and_the_late_worker_writes_nothing(db: Database) -> None:
    row = collection(db)
    begin(db, row, "a")
    finish(db)
    (issue,) = form(db, row)
    late = claim(db, issue, lease_s=-1.0)
    assert sweeping.expired(db) == []
    assert not graphing.commit(db, late, (), 0.1)
    assert drain(db, row) == ["a"]
    begin(db, row, "b")
    finish(db)
    (issue,) = form(db, row)
    (again,) = sweeping.wiped(db)
    assert (again.batch_id, again.stage) == (issue.batch_id, Stage.GRAPH) and again.token > issue.token
    assert done(db, again) == ["b"]


def test_what_waits_for_a_model_is_tried_again_and_what_failed_for_good_is_told(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    finish(db)
    (issue,) = form(db, row)
    claimed = claim(db, issue)
    ids = [wanted.document_id for wanted in claimed.documents]
    stops = [Stopped(ids[0], "unavailable", "the model is away", 0.0, costs_attempt=False), Stopped(ids[1], "bad_answer", "no JSON", None)]
    assert graphing.commit(db, claimed, stops, 0.1)
    stands = graphing.progress(db, row, BY)
    assert (stands.done, stands.waiting, stands.failed) == (0, 1, 1)
    assert drain(db, row) == ["a"]
    assert [code for *_, code, _ in graphing.failures(db, row.id)] == ["bad_answer"]


def test_what_is_changed_or_deleted_while_it_is_extracted_is_looked_at_again(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    finish(db)
    (issue,) = form(db, row)
    begin(db, row, "b", hash_="other")
    finish(db)
    removal.forget(db, row, removal.detach(db, row, [f"{row.name}-a"]))
    claimed = claim(db, issue)
    assert claimed.documents == (), "neither is what was wanted any more"
    assert graphing.commit(db, claimed, (), 0.1)
    assert drain(db, row) == ["b"]
    assert graphing.progress(db, row, BY).documents == 1


def test_a_paused_graph_forms_nothing_and_goes_on_afterwards(db: Database) -> None:
    row = collection(db)
    begin(db, row, "a")
    finish(db)
    graphing.pause(db, row.id, paused=True)
    assert graphing.pending(db, BY) == []
    graphing.pause(db, row.id, paused=False)
    assert drain(db, row) == ["a"]
