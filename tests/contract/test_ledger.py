"""The ledger's state machine, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from pipeline.contracts import Lane, Stage
from pipeline.errors import BadRequest, Conflict, Unauthorised
from workers import queues
from workers.ledger import batches, browse, catalog, control, forming, intake, losses, refs, removal, schema, sources, sweeping
from workers.ledger.engine import Database
from workers.ledger.intake import Submission
from workers.ledger.work import Advance, CollectionRow, Issue, Outcome, Ref, Setback

WINDOWS = {stage: forming.Window(8) for stage in queues.ORDER}


def collection(db: Database, name: str = "handbook", tenant: str = "default") -> CollectionRow:
    return catalog.create(
        db,
        {
            "id": f"{tenant}-{name}"[:32],
            "tenant": tenant,
            "name": name,
            "chunker": "sections",
            "chunk_options": "{}",
            "tokenizer": "cl100k_base",
            "embedder": "hashed",
            "embedder_revision": "1",
            "dimension": None,
            "store_url": "sqlite:///HOME/store",
        },
    )


def begin(db: Database, row: CollectionRow, names: str, *, hash_: str = "a", lane: Lane = Lane.BULK, route: str = "fused", size: int = 10) -> int:
    run_id = intake.open_run(db, row, source="test", lane=lane)
    items = [Submission(f"{row.name}-{name}", name, path=f"/{name}", size=size, source_hash=hash_, fingerprint="f", route=route) for name in names]
    intake.submit(db, run_id, row, lane, items)
    intake.close_scan(db, run_id, complete=True)
    return run_id


def claim(db: Database, issue: Issue, owner: str = "node-1:1:1", lease_s: float = 60.0) -> batches.Batch | None:
    return batches.claim(db, issue.batch_id, issue.token, owner, lease_s=lease_s, deadline_s=600.0)


def through(db: Database, issue: Issue, stage: Stage, chunks: int = 3) -> list[Issue]:
    batch = claim(db, issue)
    assert batch is not None
    issues = batches.commit(db, batch, Outcome(tuple(Advance(work.document_id, stage, work.source_hash, chunks) for work in batch.documents)))
    assert issues is not None
    return issues


def finish(db: Database) -> None:
    """Drive everything that waits to its end."""
    pending = forming.form(db, WINDOWS)
    while pending:
        issue = pending.pop()
        batch = claim(db, issue)
        if batch is None:
            continue
        last = batch.stages[-1]
        issues = batches.commit(db, batch, Outcome(tuple(Advance(work.document_id, last, work.source_hash, 3) for work in batch.documents)))
        pending += issues or []
        pending += forming.form(db, WINDOWS)


def test_a_run_goes_through_every_stage_and_balances(db: Database) -> None:
    run_id = begin(db, collection(db), "abc")
    finish(db)
    view = browse.run(db, browse.run_name(run_id))
    assert (view.status, view.discovered, view.indexed, view.chunks) == ("done", 3, 3, 9)


def test_local_text_goes_through_load_parse_and_chunk_in_one_message(db: Database) -> None:
    begin(db, collection(db), "abc")
    (issue,) = forming.form(db, WINDOWS)
    assert issue.stage is Stage.LOAD and issue.queue == "dujiang.parse.bulk"
    batch = claim(db, issue)
    assert batch is not None and batch.stages == queues.FUSED


def test_a_heavy_format_goes_from_queue_to_queue(db: Database) -> None:
    begin(db, collection(db), "ab", route="staged")
    (issue,) = forming.form(db, WINDOWS)
    assert issue.queue == "dujiang.load.bulk"
    (issue,) = through(db, issue, Stage.LOAD)
    assert issue.queue == "dujiang.parse.bulk"
    (issue,) = through(db, issue, Stage.PARSE)
    assert issue.queue == "dujiang.chunk.bulk"
    assert through(db, issue, Stage.CHUNK) == []
    (issue,) = forming.form(db, WINDOWS)
    (issue,) = through(db, issue, Stage.EMBED)
    assert issue.queue == "dujiang.index.bulk"


def test_the_same_message_twice_is_worked_on_once(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    assert claim(db, issue) is not None
    assert claim(db, issue) is None


def test_a_worker_that_lost_its_lease_cannot_commit(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    frozen = claim(db, issue)
    assert frozen is not None
    (again,) = losses.expire(db, issue.batch_id, issue.token, reason="frozen")
    assert batches.commit(db, frozen, Outcome((Advance("handbook-a", Stage.CHUNK, "a", 1),))) is None
    assert claim(db, again) is not None


def test_an_expired_lease_is_issued_again_in_halves(db: Database) -> None:
    begin(db, collection(db), "abcd")
    (issue,) = forming.form(db, WINDOWS)
    assert claim(db, issue, lease_s=-1.0) is not None
    halves = sweeping.expired(db)
    assert [len(found.documents) for half in halves if (found := claim(db, half)) is not None] == [2, 2]


def test_a_document_that_kills_three_workers_alone_is_quarantined_and_its_neighbours_are_not(db: Database) -> None:
    run_id = begin(db, collection(db), "ab")
    pending = forming.form(db, WINDOWS)
    while pending:
        issue = pending.pop()
        batch = claim(db, issue)
        assert batch is not None
        if any(work.key == "a" for work in batch.documents):
            pending += losses.expire(db, issue.batch_id, issue.token, reason="segmentation fault")
        else:
            batches.commit(db, batch, Outcome((Advance("handbook-b", Stage.CHUNK, "a", 1),)))
    finish(db)
    view = browse.run(db, browse.run_name(run_id))
    assert (view.status, view.indexed, view.failed) == ("done", 1, 1)
    assert view.failures[0].code == "poison" and view.failures[0].document == "a"


def test_a_published_message_that_the_broker_lost_is_sent_again_under_a_higher_token(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    forming.published(db, [issue])
    with db.write() as connection:
        connection.execute(
            update(schema.batches).values(published_at=schema.batches.c.published_at - 60, created_at=schema.batches.c.created_at - 60)
        )
    assert sweeping.lost(db, lambda _queue: 1) == []
    (again,) = sweeping.lost(db, lambda _queue: 0)
    assert (again.batch_id, again.token) == (issue.batch_id, issue.token + 1)
    assert claim(db, issue) is None
    assert claim(db, again) is not None


def test_a_wiped_broker_makes_every_queued_batch_go_out_again(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    forming.published(db, [issue])
    assert [found.batch_id for found in sweeping.wiped(db)] == [issue.batch_id]


def test_a_retry_waits_for_its_time_and_a_rate_limit_costs_no_attempt(db: Database) -> None:
    begin(db, collection(db), "ab")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    limited = Setback("handbook-a", Stage.CHUNK, "retry", "rate_limited", "429", "wait", delay_s=3600.0, costs_attempt=False)
    failed = Setback("handbook-b", Stage.CHUNK, "retry", "unavailable", "500", "wait", delay_s=0.0)
    assert batches.commit(db, batch, Outcome(setbacks=(limited, failed))) == []
    (again,) = forming.form(db, WINDOWS)
    retried = claim(db, again)
    assert retried is not None and [(work.key, work.attempts) for work in retried.documents] == [("b", 1)]
    with db.read() as connection:
        assert connection.scalar(select(schema.documents.c.attempts).where(schema.documents.c.id == "handbook-a")) == 0


@pytest.mark.parametrize(("paused", "waits"), [(0, False), (schema.SOURCE_STOPPED, True)])
def test_what_was_refused_with_credentials_that_have_been_changed_since_does_not_wait_for_them(db: Database, paused: int, *, waits: bool) -> None:
    row = collection(db)
    begin(db, row, "a")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    sources.create(
        db, {"id": "s", "tenant": "default", "collection_id": row.id, "collection": row.name, "name": "wiki", "kind": "web", "paused": paused}
    )
    with db.write() as connection:
        connection.execute(update(schema.documents).values(source_id="s"))
    refused = Setback("handbook-a", Stage.LOAD, "retry", "source_stopped", "refused", "give others", delay_s=60.0, costs_attempt=False)
    batches.commit(db, batch, Outcome(setbacks=(refused,)))
    assert bool(forming.form(db, WINDOWS)) is not waits


def test_unchanged_documents_only_enter_the_balance(db: Database) -> None:
    row = collection(db)
    begin(db, row, "ab")
    finish(db)
    view = browse.run(db, browse.run_name(begin(db, row, "ab")))
    assert (view.status, view.discovered, view.unchanged, view.indexed) == ("done", 2, 2, 0)
    assert forming.form(db, WINDOWS) == []


def test_changed_bytes_make_a_newer_version_and_the_older_one_can_no_longer_be_committed(db: Database) -> None:
    row = collection(db)
    first = begin(db, row, "a", hash_="old")
    (issue,) = forming.form(db, WINDOWS)
    old = claim(db, issue)
    assert old is not None
    second = begin(db, row, "a", hash_="new")
    batches.commit(db, old, Outcome((Advance("handbook-a", Stage.CHUNK, "old", 1),)))
    finish(db)
    with db.read() as connection:
        found = connection.execute(select(schema.documents.c.live_hash, schema.documents.c.live_version)).one()
    assert tuple(found) == ("new", 2)
    assert [browse.run(db, browse.run_name(number)).indexed for number in (first, second)] == [1, 1]


def test_the_same_bytes_under_way_are_waited_for_not_begun_again(db: Database) -> None:
    row = collection(db)
    first, second = begin(db, row, "a"), begin(db, row, "a")
    finish(db)
    assert [browse.run(db, browse.run_name(number)).status for number in (first, second)] == ["done", "done"]
    with db.read() as connection:
        assert connection.scalar(select(schema.documents.c.version)) == 1


def test_a_cancelled_run_balances_and_no_late_worker_changes_it(db: Database) -> None:
    run_id = begin(db, collection(db), "ab")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    control.stop(db, run_id)
    assert batches.held(db, batch) == frozenset()
    batches.commit(db, batch, Outcome(tuple(Advance(work.document_id, Stage.CHUNK, "a", 1) for work in batch.documents)))
    view = browse.run(db, browse.run_name(run_id))
    assert (view.status, view.cancelled, view.indexed) == ("cancelled", 2, 0)


def test_a_paused_run_is_not_fed_until_it_is_resumed(db: Database) -> None:
    run_id = begin(db, collection(db), "a")
    control.hold(db, run_id, paused=True)
    assert forming.form(db, WINDOWS) == []
    control.hold(db, run_id, paused=False)
    assert len(forming.form(db, WINDOWS)) == 1


def test_no_more_batches_than_the_window_are_under_way(db: Database) -> None:
    begin(db, collection(db), [f"{number:03}" for number in range(300)])  # type: ignore[arg-type]
    issues = forming.form(db, {stage: forming.Window(2) for stage in queues.ORDER})
    assert len(issues) == 2
    assert forming.form(db, {stage: forming.Window(2) for stage in queues.ORDER}) == []


def test_a_large_document_travels_alone_and_small_ones_together(db: Database) -> None:
    begin(db, collection(db), "abc", size=queues.MAX_BYTES)
    begin(db, collection(db, "notes"), "abc")
    sizes = sorted(len(batch.documents) for issue in forming.form(db, WINDOWS) if (batch := claim(db, issue)) is not None)
    assert sizes == [1, 1, 1, 3]


def test_tenants_take_turns(db: Database) -> None:
    many = [f"{number:03}" for number in range(200)]
    begin(db, collection(db, "flood", "a"), many)  # type: ignore[arg-type]
    begin(db, collection(db, "trickle", "b"), "xyz")
    issues = forming.form(db, {stage: forming.Window(2) for stage in queues.ORDER})
    tenants = {batch.collection.tenant for issue in issues if (batch := claim(db, issue)) is not None}
    assert tenants == {"a", "b"}


def test_chunks_wait_for_company_before_they_are_embedded_while_more_is_coming(db: Database) -> None:
    many = [f"{number:03}" for number in range(100)]
    begin(db, collection(db), many)  # type: ignore[arg-type]
    first, second = forming.form(db, WINDOWS)
    through(db, first, Stage.CHUNK, chunks=3)
    assert forming.form(db, WINDOWS) == []
    through(db, second, Stage.CHUNK, chunks=3)
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None and batch.stages == (Stage.EMBED,) and len(batch.documents) == 100


def test_a_failed_document_answers_in_its_old_version_and_is_listed(db: Database) -> None:
    row = collection(db)
    begin(db, row, "a", hash_="old")
    finish(db)
    begin(db, row, "a", hash_="new")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    dead = Setback("handbook-a", Stage.PARSE, "dead", "malformed", "a is damaged", "save it again")
    batches.commit(db, batch, Outcome(setbacks=(dead,)))
    (failure,) = browse.failures(db, tenant="default", collection="handbook", run_id="", code="", limit=10, after="").data
    assert (failure.stage, failure.code, failure.detail, failure.hint) == ("parse", "malformed", "a is damaged", "save it again")
    assert browse.document(db, row.id, row.name, "handbook-a").version == 1


def test_a_deleted_document_cannot_come_back_through_a_late_worker(db: Database) -> None:
    row = collection(db)
    run_id = begin(db, row, "a")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    removal.forget(db, row, removal.detach(db, row, ["handbook-a"]))
    batches.commit(db, batch, Outcome((Advance("handbook-a", Stage.CHUNK, "a", 1),)))
    assert browse.document_list(db, row.id, row.name, status="", limit=10, after="").data == ()
    assert browse.run(db, browse.run_name(run_id)).finished
    begin(db, row, "a")
    with db.read() as connection:
        assert (connection.scalar(select(schema.documents.c.version)) or 0) > 1


def test_artifacts_are_found_by_document_and_by_key_and_a_repeat_replaces_them(db: Database) -> None:
    begin(db, collection(db), "a")
    (issue,) = forming.form(db, WINDOWS)
    batch = claim(db, issue)
    assert batch is not None
    twice = (Ref("handbook-a", 1, Stage.PARSE, "k", "parse/1-1.pack", 0, 5), Ref("handbook-a", 1, Stage.CHUNK, "c", "chunk/1-1.pack", 0, 5))
    batches.commit(db, batch, Outcome((Advance("handbook-a", Stage.CHUNK, "a", 1),), refs=twice))
    assert refs.of(db, Stage.PARSE, {"handbook-a": 1})["handbook-a"].pack == "parse/1-1.pack"
    assert refs.of(db, Stage.PARSE, {"handbook-a": 2}) == {}
    assert set(refs.by_key(db, ["k", "c", "x"])) == {"k", "c"}
    assert refs.unreferenced(db, ["parse/1-1.pack", "parse/9-9.pack"]) == ["parse/9-9.pack"]


def test_a_key_authenticates_until_it_is_revoked_and_only_its_hash_is_kept(db: Database) -> None:
    made = catalog.create_key(db, "ci", ("handbook",), ("read",), "default")
    assert made.key is not None
    who = catalog.authenticate(db, made.key)
    assert who.may("read", "handbook") and not who.may("read", "other") and not who.may("write", "handbook")
    with db.read() as connection:
        assert made.key not in str(connection.execute(select(schema.api_keys)).all())
    catalog.revoke_key(db, made.key_id, "default")
    with pytest.raises(Unauthorised):
        catalog.authenticate(db, made.key)


def test_a_repeated_request_gets_the_first_answer_and_another_payload_is_refused(db: Database) -> None:
    assert catalog.remember(db, "key", "POST /x", "id-1", "h1") is None
    with pytest.raises(Conflict):
        catalog.remember(db, "key", "POST /x", "id-1", "h1")
    catalog.recall(db, "key", "POST /x", "id-1", 202, b'{"run_id":"run_1"}')
    assert catalog.remember(db, "key", "POST /x", "id-1", "h1") == (202, b'{"run_id":"run_1"}')
    with pytest.raises(BadRequest):
        catalog.remember(db, "key", "POST /x", "id-1", "h2")


def test_a_collection_is_made_once_and_other_options_are_refused(db: Database) -> None:
    assert collection(db) == collection(db)
    with pytest.raises(Conflict):
        catalog.create(
            db,
            {
                "id": "other",
                "tenant": "default",
                "name": "handbook",
                "chunker": "windows",
                "chunk_options": "{}",
                "tokenizer": "cl100k_base",
                "embedder": "hashed",
                "embedder_revision": "1",
                "dimension": None,
                "store_url": "x",
            },
        )
