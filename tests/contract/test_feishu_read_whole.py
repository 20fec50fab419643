"""Both wikis of the simulated Feishu, read by the connector and the parsers: nothing is lost on the way, and no limit is exceeded."""

from __future__ import annotations

from pipeline.contracts.sources import Listed, ScopeFailed, SourceSpec
from pipeline.errors import Skipped
from pipeline.load import connectors
from pipeline.parse import parse
from tests.simulators.feishu import APP_ID, APP_SECRET, Feishu, library
from tests.simulators.feishu_large import grow
from tests.simulators.feishu_library import QUESTIONS
from tests.simulators.served import Around


def read(feishu: Feishu, **options: str) -> dict[str, str]:
    """Text of everything that can be read, by key, with the vendor's limits in force."""
    feishu.meter.enforced = True
    given = {"base_url": feishu.url, "app_id": APP_ID, "wiki_space": "all", **options}
    connector = connectors.create(SourceSpec("source-1", "feishu", given, {"app_secret": APP_SECRET}), Around(feishu.clock, patience_s=3600))
    events = list(connector.scan({}))
    assert not [event for event in events if isinstance(event, ScopeFailed)]
    texts: dict[str, str] = {}
    for item in [event.item for event in events if isinstance(event, Listed)]:
        try:
            texts[item.key] = parse(connector.fetch(item)).text
        except Skipped:
            continue
    return texts


def test_the_demonstrations_wiki_arrives_with_the_answers_to_its_questions() -> None:
    with library(Feishu()) as feishu:
        texts = read(feishu, folder_token=feishu.library.root.token)
    assert len(texts) == 15
    assert [question for question, answer in QUESTIONS if not any(answer in text for text in texts.values())] == []


def test_a_wiki_of_hundreds_of_pages_arrives_whole_and_within_every_limit() -> None:
    with Feishu() as feishu:
        grown = grow(feishu.library, 160, seed=3)
        texts = read(feishu)
    assert feishu.meter.over() == {} and feishu.meter.peak("docx.blocks") > 1
    assert not [call for call in feishu.calls if call.status >= 400]
    assert [tag for _, tag, token in grown.facts if not any(key.endswith(token) and tag in text for key, text in texts.items())] == []
