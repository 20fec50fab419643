"""Events of a simulated Feishu: taken when they are genuine, once, and never needed for the truth."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.errors import Forbidden, Malformed
from tests.feishu_sync import Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import text
from tests.simulators.feishu_events import ENCRYPT_KEY, VERIFICATION_TOKEN, Sent
from tests.simulators.served import Clock
from tests.system import System, until


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("events") / "home") as running:
        yield running


@pytest.fixture
def feishu(system: System, name: str) -> Iterator[Feishu]:
    # Events say when they were sent, and the receiver goes by its own clock.
    with simulated(system, name, clock=Clock(real=True)) as simulator:
        simulator.library.docx("Gauge", [text("seven metres")])
        simulator.library.docx("Weir", [text("closed")])
        yield simulator


@pytest.fixture
def tenant(system: System, feishu: Feishu, name: str) -> Tenant:
    made = Tenant(feishu, system, name, encrypt_key=ENCRYPT_KEY, verification_token=VERIFICATION_TOKEN)
    assert made.sync().indexed == 2
    return made


def hear(tenant: Tenant, sent: Sent) -> tuple[bytes, int]:
    heard = tenant.platform.hear(tenant.show().hook.rpartition("/")[2], sent.headers, sent.body)
    return heard.answer, heard.looked_at


def edited(feishu: Feishu, words: str) -> Sent:
    doc = next(thing for thing in feishu.library.things.values() if thing.title == "Gauge")
    feishu.library.edit(doc, [text(words)])
    return feishu.events.about(doc)


def test_an_edit_that_is_told_is_fetched_alone_without_a_listing(feishu: Feishu, tenant: Tenant) -> None:
    sent = edited(feishu, "eight metres")
    feishu.calls.clear()
    assert hear(tenant, sent)[1] == 1
    until(lambda: tenant.texts().get("Gauge", "").endswith("eight metres"), 30.0, "the edit is there")
    assert not feishu.asked("/drive/v1/files$")
    assert tenant.audit() == 2


def test_an_event_counts_once(feishu: Feishu, tenant: Tenant) -> None:
    sent = edited(feishu, "nine metres")
    assert [hear(tenant, sent)[1] for _ in range(3)] == [1, 0, 0]


def test_an_event_that_is_forged_old_or_damaged_is_refused(feishu: Feishu, tenant: Tenant) -> None:
    doc = next(iter(thing for thing in feishu.library.things.values() if thing.title == "Gauge"))
    good = feishu.events.about(doc)
    unsigned = replace(good, headers={name: value for name, value in good.headers.items() if name != "X-Lark-Signature"})
    other = feishu.events.about(doc, key="another key")
    swapped = replace(good, body=feishu.events.about(doc, "drive.file.deleted_v1").body)
    for sent in (unsigned, other, swapped, feishu.events.about(doc, age_s=3600.0), feishu.events.about(doc, age_s=-3600.0)):
        with pytest.raises(Forbidden):
            hear(tenant, sent)
    with pytest.raises(Malformed):
        hear(tenant, replace(good, body=b"no json"))
    assert hear(tenant, good)[1] == 1, "a refused event has not used up a genuine one"


def test_the_address_is_proved_by_the_challenge_and_kinds_that_touch_no_document_do_nothing(feishu: Feishu, tenant: Tenant) -> None:
    answer, looked_at = hear(tenant, feishu.events.challenge("a word"))
    assert (b"a word" in answer, looked_at) == (True, 0)
    with pytest.raises(Forbidden):
        hear(tenant, feishu.events.challenge("a word", token="of somebody else"))
    doc = next(iter(feishu.library.things.values()))
    assert hear(tenant, feishu.events.about(doc, "im.message.receive_v1"))[1] == 0


def test_an_event_that_was_lost_is_made_up_for_by_the_next_sync(feishu: Feishu, tenant: Tenant) -> None:
    edited(feishu, "ten metres")
    assert tenant.sync().indexed == 1
    assert tenant.texts()["Gauge"].endswith("ten metres")
