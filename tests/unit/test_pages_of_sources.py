"""How the pages of a source reach the parser: which part of them is kept, and in which charset they are said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.shelf import filled
from tests.simulators.web import Web
from tests.sourced import Bench, plugged

TEXT = "The weir at Dujiangyan was built more than two thousand years ago, and it still divides the water of the Min without a dam. "
PAGE = f"<html><title>The weir</title><h1>The weir</h1><p>{TEXT * 3}</p><div class='sidebar'><p>Most read: ten bridges.</p></div></html>"


def test_a_source_says_which_part_of_its_pages_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with plugged(monkeypatch):
        bench = Bench(tmp_path / "home")
        shelf = filled(tmp_path / "shelf.json")
        for key, metadata in (
            ("article", {"content": "article"}),
            ("full", {"content": "full"}),
            ("unsaid", {}),
            ("other", {"content": "a word of its own"}),
        ):
            shelf.put(key, PAGE, path=f"{key}.html", metadata=metadata)
        shelf.put(
            "linked",
            PAGE.replace("Min without", "<a href='/min'>Min</a> without"),
            path="linked.html",
            url="https://r.example/a",
            metadata={"links": "inline"},
        )
        shelf.save()
        bench.sources.create("shelf", "shelf", "docs", options={"path": str(shelf.path)})
        assert bench.sync().indexed == 5
        texts = {view.title: bench.platform.document_text("docs", view.document_id) for view in bench.platform.documents("docs").data}
        assert {title for title, text in texts.items() if "Most read" not in text} == {"article"}
        assert "the [Min](https://r.example/min) without" in texts.pop("linked")
        assert all(text.startswith("The weir\n\n" + TEXT) for text in texts.values())
        bench.close()


def test_pages_of_the_web_are_read_as_articles_in_their_own_charset_and_anew_when_that_is_changed(tmp_path: Path) -> None:
    text = "春天的清晨，河边的茶馆还没有开门，老人们已经坐在石凳上谈论今年的雨水，都说应该早些打开闸门。"
    body = f"<html><title>茶馆</title><h1>茶馆</h1><p>{text}</p><p>{text}</p><div class='sidebar'><p>热点：古桥。</p></div></html>".encode("gbk")
    with Web() as web:
        web.site().put("/", body, "text/html; charset=utf-8")
        bench = Bench(tmp_path / "home", private_hosts="127.0.0.0/8")
        bench.sources.create("tea", "web", "docs", options={"entry_url": web.address(), "delay_s": "0"})
        assert bench.sync("tea").indexed == 1
        (view,) = bench.platform.documents("docs").data
        assert bench.platform.document_text("docs", view.document_id) == f"茶馆\n\n{text}\n\n{text}"
        bench.sources.update("tea", options={"content": "full"})
        assert bench.sync("tea").indexed == 1
        assert bench.platform.document_text("docs", view.document_id).endswith("热点：古桥。")
        bench.close()
