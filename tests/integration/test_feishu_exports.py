"""Exports and pictures of a simulated Feishu: one ticket for each, whoever asks, and a way out where there is none."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.feishu_sync import Tenant
from tests.feishu_sync import tenant as simulated
from tests.simulators.feishu import Feishu
from tests.simulators.feishu_blocks import image, text
from tests.simulators.feishu_jobs import FILE_LIFE_S, TOKENLESS
from tests.simulators.served import Answer, Call, Fault
from tests.system import System

Source = Callable[..., Tenant]
CREATED, LOOKED_AT, TAKEN = r"/export_tasks$", r"/export_tasks/[^/]+$", r"/export_tasks/file/"


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("exports") / "home") as running:
        yield running


@pytest.fixture
def feishu(system: System, name: str) -> Iterator[Feishu]:
    with simulated(system, name) as simulator:
        simulator.library.docx("Gauge", [text("seven metres")])
        yield simulator


@pytest.fixture
def source(system: System, feishu: Feishu, name: str) -> Source:
    return lambda **options: Tenant(feishu, system, name, **{"content": "export", **options})


def test_an_export_that_says_done_before_it_has_a_file_is_waited_for(feishu: Feishu, source: Source) -> None:
    feishu.exports.course = (TOKENLESS, 2)
    tenant = source()
    assert tenant.sync().indexed == 1
    assert "seven metres" in tenant.texts()["Gauge"]
    assert (tenant.asked(CREATED), tenant.asked(LOOKED_AT)) == (1, 3)


def test_whoever_takes_an_export_over_goes_on_with_its_ticket(feishu: Feishu, source: Source) -> None:
    feishu.faults.append(Fault(TAKEN, Answer(502), times=4))
    tenant = source()
    assert tenant.sync().indexed == 1
    assert tenant.asked(CREATED) == 1 and tenant.asked(TAKEN) >= 5


def test_a_worker_killed_while_it_waits_for_an_export_leaves_its_ticket_to_the_next(system: System, feishu: Feishu, source: Source) -> None:
    feishu.exports.course = (2, 2)
    answer = feishu.answer

    def killing(call: Call) -> Answer:
        if re.search(LOOKED_AT, call.path) and not killed:
            killed.append(system.child("network"))
            os.kill(killed[0], signal.SIGKILL)
        return answer(call)

    killed: list[int] = []
    feishu.answer = killing  # type: ignore[method-assign]
    tenant = source()
    assert tenant.sync().indexed == 1
    assert "seven metres" in tenant.texts()["Gauge"]
    assert killed and tenant.asked(CREATED) == 1


def test_a_file_that_is_gone_by_the_time_it_is_fetched_gets_another_ticket(feishu: Feishu, source: Source) -> None:
    feishu.exports.course = ()
    answer = feishu.answer

    def late(call: Call) -> Answer:
        given = answer(call)
        if re.search(LOOKED_AT, call.path) and not gone:
            gone.append(call.path)
            feishu.clock.advance(FILE_LIFE_S + 1)
        return given

    gone: list[str] = []
    feishu.answer = late  # type: ignore[method-assign]
    tenant = source()
    assert tenant.sync().indexed == 1
    assert tenant.asked(CREATED) == 2


def test_what_is_too_large_to_export_is_read_in_blocks_and_what_may_not_be_exported_fails_by_name(feishu: Feishu, source: Source) -> None:
    large = next(thing for thing in feishu.library.things.values() if thing.title == "Gauge")
    barred = feishu.library.docx("Barred", [text("nobody's words")])
    feishu.exports.ends = {large.token: 107, barred.token: 110}
    tenant = source()
    run = tenant.sync()
    assert (run.indexed, run.failed) == (1, 1)
    assert "seven metres" in tenant.texts()["Gauge"]
    assert "right to download" in run.failures[0].hint and run.failures[0].document.endswith(barred.token)


# ------------------------------------------------------------ pictures


def test_pictures_that_are_refused_or_beyond_the_days_cap_leave_the_text_and_say_so(feishu: Feishu, source: Source) -> None:
    library = feishu.library
    barred, shown, late = (library.medium(word.encode()) for word in ("barred", "shown", "late"))
    library.docx("Pictures", [text("three gauges"), *(image(one.token) for one in (barred, shown, late))])
    feishu.faults.append(Fault(f"/medias/{barred.token}/", Answer(403), times=9))
    feishu.meter.enforced, feishu.meter.limits["media"] = True, ((1, 86_400.0),)
    tenant = source(content="blocks")
    assert tenant.sync().indexed == 2
    view = next(view for view in tenant.documents().values() if view.title == "Pictures")
    assert "three gauges" in tenant.texts()["Pictures"]
    states = [entry.split()[2] for entry in view.metadata["assets"]]
    assert states == ["forbidden", "external", "pending"], view.metadata["assets"]
