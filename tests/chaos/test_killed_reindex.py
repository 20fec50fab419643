"""A collection is built anew under kills, while its documents come, change and go: it comes to what a fresh collection would."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.chaos.conftest import seed
from tests.chaos.proof import balanced, nothing_left, once_each
from tests.chaos.strikes import VICTIMS, recovered
from tests.simulators.model_server import ModelServer
from tests.system import System, fill, markdown, until
from workers.ledger.schema import artifact_refs, collections, documents
from workers.views import RunView

TEXTS, DOCUMENTS = 60, 10
SMALL, SMALLER = "windows:64/8", "windows:48/0"
KILLS = ("a process of the pool", "the node network", "the node index", "the supervisor")
END_S = 120.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "docs", TEXTS, documents=DOCUMENTS)


def digest(system: System, tenant: str) -> str:
    return system.audit(tenant=tenant).digest


def fresh(folder: Path, tmp_path: Path, model: ModelServer, tenant: str, chunker: str) -> str:
    """What a collection that is made with this chunker now would come to, undisturbed."""
    calm = System(tmp_path / f"calm-{chunker.partition('/')[0].replace(':', '-')}", embedder="openai:stub", embedder_base_url=model.url)
    calm.platform.create_collection("docs", tenant=tenant, chunker=chunker)
    assert calm.inline(folder, tenant=tenant).failed == 0
    found = digest(calm, tenant)
    calm.close()
    return found


def proved(system: System, tenant: str, run: RunView) -> RunView:
    """The build ended with every document, and left nothing behind."""
    ended = system.finish(run, END_S)
    balanced(ended)
    assert (ended.status, ended.failed, ended.failures) == ("done", 0, ())
    once_each(system, tenant)
    nothing_left(system)
    with system.platform.db.read() as connection:
        mine = (documents.c.tenant == tenant, documents.c.shadow_of != "")
        assert connection.scalar(select(func.count()).select_from(documents).where(*mine)) == 0
        assert connection.scalar(select(func.count()).select_from(collections).where(collections.c.tenant == tenant)) == 1
        nobody = artifact_refs.c.document_id.not_in(select(documents.c.id))
        assert connection.scalars(select(artifact_refs.c.document_id).where(nobody)).all() == []
    return ended


def change(system: System, folder: Path, tenant: str, edition: int) -> RunView:
    """Some documents are new, some changed, one is deleted."""
    for number in range(5):
        (folder / f"station-{number:04}.md").write_text(markdown(number, edition=edition), encoding="utf-8")
        (folder / f"new-{edition}-{number}.md").write_text(markdown(1000 * edition + number), encoding="utf-8")
    gone = folder / f"station-{10 + edition:04}.md"
    gone.unlink()
    key = f"file://{gone.resolve()}"
    ((victim,),) = system.rows("SELECT id FROM documents WHERE tenant = ? AND key = ? AND shadow_of = ''", tenant, key)
    system.platform.delete_document("docs", victim, tenant=tenant)
    return system.ingest(folder, tenant=tenant)


def building(system: System, tenant: str) -> bool:
    return bool(system.rows("SELECT 1 FROM collections WHERE tenant = ? AND status = 'building'", tenant))


def built(system: System, tenant: str) -> int:
    """Documents of the next generation that are done."""
    return int(system.rows("SELECT count(*) FROM documents WHERE tenant = ? AND shadow_of <> '' AND status = 'done'", tenant)[0][0])


def test_a_build_under_kills_with_documents_coming_changing_and_going_equals_a_fresh_collection(
    system: System, folder: Path, tmp_path: Path, model: ModelServer
) -> None:
    tenant, chance = "reindexed", random.Random(seed())
    system.finish(system.ingest(folder, tenant=tenant))
    run = system.platform.generations.reindex("docs", chunker=SMALL, tenant=tenant)
    others: list[RunView] = []
    for edition, victim in enumerate(KILLS, start=1):
        others.append(change(system, folder, tenant, edition))
        reached = min(TEXTS + DOCUMENTS - 5, built(system, tenant) + 10)
        until(lambda reached=reached: built(system, tenant) >= reached or not building(system, tenant), 60.0, f"{reached} documents are built")
        VICTIMS[victim](system, chance)
        recovered(system)
    for other in others:
        balanced(system.finish(other, END_S))
    proved(system, tenant, run)
    view = system.platform.collection("docs", tenant=tenant)
    assert (view.generation, view.chunker) == (2, SMALL)
    assert digest(system, tenant) == fresh(folder, tmp_path, model, tenant, SMALL)
    again = system.finish(system.ingest(folder, tenant=tenant))
    assert again.unchanged == again.discovered


def test_the_supervisor_killed_around_the_flip_leaves_one_generation_or_the_other(
    system: System, folder: Path, tmp_path: Path, model: ModelServer
) -> None:
    tenant, chance = "flipped", random.Random(seed())
    system.finish(system.ingest(folder, tenant=tenant))
    before = {1: digest(system, tenant), 2: fresh(folder, tmp_path, model, tenant, SMALL), 3: fresh(folder, tmp_path, model, tenant, SMALLER)}
    for number, chunker in ((2, SMALL), (3, SMALLER)):
        run = system.platform.generations.reindex("docs", chunker=chunker, tenant=tenant)
        waiting_to_flip(lambda run=run: system.platform.run(run.run_id), system, tenant)
        pause = chance.uniform(0.0, 1.2)
        after(pause, lambda: not building(system, tenant))
        VICTIMS["the supervisor"](system, chance)
        there = system.platform.collection("docs", tenant=tenant).generation
        assert there in (number - 1, number) and digest(system, tenant) == before[there]
        proved(system, tenant, run)
        assert system.platform.collection("docs", tenant=tenant).generation == number and digest(system, tenant) == before[number]
    back = system.platform.generations.rollback("docs", tenant=tenant)
    proved(system, tenant, back)
    assert digest(system, tenant) == before[2]


def waiting_to_flip(look: Callable[[], RunView], system: System, tenant: str) -> None:
    until(lambda: built(system, tenant) == TEXTS + DOCUMENTS or look().finished, 60.0, "all documents are built")


def after(seconds: float, over: Callable[[], bool]) -> None:
    """Until so long has passed, or it is over."""
    import time

    end = time.monotonic() + seconds
    until(lambda: time.monotonic() > end or over(), seconds + 10, "time passes")
