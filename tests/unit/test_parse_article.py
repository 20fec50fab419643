from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contracts import ParsedDocument, SourceItem
from pipeline.errors import BadRequest, PipelineError
from pipeline.parse import parse
from tests.contract.parser_vectors import raw

NEWS = [
    "The weir at Dujiangyan was built more than two thousand years ago, and it still divides the water of the Min without a dam.",
    "Every winter the channel is dug out to the depth of the iron bars that were laid there, so that in spring enough water comes through.",
    "What the river brings in a flood leaves over the low spillway, and with it goes most of the sand that would fill the channel.",
]
CHINESE = [
    "都江堰位于四川省都江堰市城西，岷江从山里流出，到了这里才进入成都平原，江水一分为二。",
    "鱼嘴把江水分成内江和外江，飞沙堰用来泄洪和排沙，宝瓶口控制进水量，三者互相配合。",
    "每年冬天都要淘挖河床，挖到卧铁为止，到了春天就有足够的水流进渠道，灌溉下游的农田。",
]


def paragraphs(texts: list[str]) -> str:
    return "".join(f"<p>{text}</p>" for text in texts)


def read(page: str, content: str = "article", **options: str) -> ParsedDocument:
    return parse(raw(page.encode(), "page.html"), {"content": content, **options})


def blocks(document: ParsedDocument) -> list[tuple[str, str]]:
    return [(section.tag, document.text[section.start : section.end]) for section in document.sections]


SURROUNDED = f"""<html><head><title>How the weir works | River News</title></head><body>
<div class="top-nav"><a href="/">Home</a> <a href="/rivers">Rivers</a></div>
<div class="page"><div class="left">
<h1>How the weir works</h1><div class="byline">By Lin Cen, 3 May 2026</div><div class="share-buttons">Share Tweet Pin</div>
{paragraphs(NEWS[:1])}<div class="ad-slot">Advertisement</div><h2>In winter</h2>{paragraphs(NEWS[1:])}
<div class="related-stories"><h3>Related stories</h3><ul><li><a href="/a">Ten bridges that nobody crosses any more</a></li></ul></div>
</div><div class="sidebar"><h3>Most read</h3><p>{"A long teaser of another story, with commas, and a full stop. " * 3}</p></div></div>
<div id="comments"><div class="comment"><p>{"I was there last year, and it was lovely, really. " * 9}</p></div></div>
<div class="cookie-banner"><p>{"We use cookies, as everybody does, to see what you read. " * 9}</p></div>
<footer><p>Copyright 2026 River News, all rights reserved, printed on recycled electrons, as required by law.</p></footer></body></html>"""


def test_an_article_is_told_from_what_surrounds_and_interrupts_it() -> None:
    document = read(SURROUNDED)
    assert blocks(document) == [
        ("Title", "How the weir works"),
        ("Text", NEWS[0]),
        ("Title", "In winter"),
        ("Text", NEWS[1]),
        ("Text", NEWS[2]),
    ]
    assert document.title == "How the weir works" and not document.warnings


def test_a_local_file_keeps_everything_unless_it_is_asked_for_the_article() -> None:
    whole = parse(raw(SURROUNDED.encode(), "page.html"), {})
    assert "Most read" in whole.text and "I was there last year" in whole.text
    assert read(SURROUNDED, "full").text == whole.text


def test_chinese_pages_are_read_the_same_way() -> None:
    page = f"""<title>都江堰怎样分水_江河新闻网</title><div class="daohang"><a href="/">首页</a><a href="/n">新闻</a><a href="/s">水利</a></div>
    <div class="w1000"><div class="zuo"><h1>都江堰怎样分水</h1><div class="xinxi">2026-05-03 10:21 来源：江河报</div>
    <div class="zw">{paragraphs(CHINESE)}<p>责任编辑：林岑</p><p>上一篇：<a href="/x">古桥的故事</a></p></div></div>
    <div class="you"><h3>热点</h3><ul><li><a href="/1">春天的油菜花开了三百里</a></li><li><a href="/2">老街的茶馆又开张了</a></li></ul></div></div>
    <div class="di">版权所有 江河新闻网 蜀ICP备00000000号</div>"""
    document = read(page)
    assert document.title == "都江堰怎样分水"
    assert [text for tag, text in blocks(document) if tag == "Text"] == CHINESE
    assert all(section.heading_path == ("都江堰怎样分水",) for section in document.sections if section.tag == "Text")


def test_a_headline_outside_of_the_text_is_the_heading_of_all_of_it() -> None:
    page = f"""<title>How the weir works - River News</title><header><h1>How the weir works</h1></header>
    <article>{paragraphs(NEWS)}</article>"""
    document = read(page)
    assert document.title == "How the weir works" and document.text == "\n\n".join(NEWS)
    assert {section.heading_path for section in document.sections} == {("How the weir works",)}


def test_tables_lists_quotes_and_code_with_its_language_keep_their_shape() -> None:
    page = f"""<title>Gauge</title><div class="menu"><a href="/">Docs</a></div><div class="doc-content"><h1>Gauge reading</h1>{paragraphs(NEWS)}
    <section id="related-tables"><h2>Related tables</h2>
    <table><tr><th>Gate<th colspan=2>Litres</tr><tr><td rowspan=2>Fish mouth<td>120<td>7</tr><tr><td>80<td>9</tr></table></section>
    <div class="code-header">python</div><div class="highlight-source-python"><pre><span>import weir</span>\nweir.open(3)</pre></div>
    <ol><li>Dig</li><li>Lay bars<ul><li>iron</li></ul></li></ol><blockquote>Deep the channel, low the spillway.</blockquote></div>"""
    document = read(page)
    found = blocks(document)
    assert ("Code", "```python\nimport weir\nweir.open(3)\n```") in found
    assert ("List", "1. Dig\n2. Lay bars\n  - iron") in found
    assert ("Quote", "Deep the channel, low the spillway.") in found
    assert ("Table", "Gate | Litres | Litres\nFish mouth | 120 | 7\nFish mouth | 80 | 9") in found
    (table,) = document.tables
    assert 'rowspan="2"' in table.html and next(s for s in document.sections if s.tag == "Table").heading_path == ("Gauge reading", "Related tables")


def test_a_page_of_data_tables_keeps_them() -> None:
    rows = "".join(f"<tr><td>Gate {number}<td>{number * 3}<td>open</tr>" for number in range(9))
    page = f"""<div class="nav"><a href="/">Home</a></div><div><table><tr><th>Gate<th>Litres<th>State</tr>{rows}</table>
    <p>Read on the third of May by the keeper of the weir, and checked, as always, by nobody.</p></div>"""
    document = read(page)
    assert len(document.tables) == 1 and "Gate 8 | 24 | open" in document.text and not document.warnings


def test_of_several_articles_below_each_other_the_page_s_own_is_kept() -> None:
    others = "".join(f"<article><h2>Another story {n}</h2>{paragraphs([CHINESE[n % 3] * 3])}</article>" for n in range(4))
    page = f"<title>How the weir works</title><main><article><h1>How the weir works</h1>{paragraphs(NEWS)}</article>{others}</main>"
    assert read(page).text == "\n\n".join(["How the weir works", *NEWS])


def test_a_longer_list_of_other_articles_does_not_win_over_the_page_s_own() -> None:
    others = "".join(f"<article><p>{text}</p></article>" for text in CHINESE * 4)
    page = (
        f"<title>How the weir works</title><div><article><h1>How the weir works</h1>{paragraphs(NEWS[:2])}</article><article>{others}</article></div>"
    )
    assert read(page).text == "\n\n".join(["How the weir works", *NEWS[:2]])


def test_lines_around_the_text_that_are_none_of_it_go_whatever_they_are_called() -> None:
    before, after = "<div>You are here: rivers</div>", "<div>Print</div><h3>More from this river</h3>"
    page = f"<title>How the weir works</title><div>{before}<h1>How the weir works</h1><div>3 May 2026 10:21</div>{paragraphs(NEWS)}{after}</div>"
    assert read(page).text == "\n\n".join(["How the weir works", *NEWS])


def test_a_text_that_advertisements_cut_into_pieces_stays_whole() -> None:
    pieces = "".join(f'<div class="row"><div class="ad-rail">ad</div><div class="body-text">{paragraphs([text] * 2)}</div></div>' for text in NEWS)
    document = read(f"<title>Weir</title><div class='story'>{pieces}</div><div class='footer'>x</div>")
    assert [text for _, text in blocks(document)] == [text for text in NEWS for _ in range(2)]


MENU = "<div class='menu'>" + "".join(f"<a href='/{number}'>栏目{number}</a> " for number in range(12)) + "</div>"
FOOT = "<div class='foot'><p>版权所有：某某水利局 地址：某市某路1号，邮编：610000，电话：028-00000000，蜀ICP备00000000号</p></div>"


@pytest.mark.parametrize(
    "text",
    [
        "<p>因管道检修，5月4日8时至18时停水。</p>",
        "<dl><dt>怎样缴费？</dt><dd>在手机上扫码即可。</dd><dt>怎样报修？</dt><dd>拨打热线电话。</dd></dl>",
        "<table><tr><td>口径<td>15 mm</tr><tr><td>精度<td>B 级</tr></table><ul><li>防滴漏</li><li>远程抄表</li></ul>",
    ],
)
def test_of_a_short_page_what_stands_around_its_headline_is_kept(text: str) -> None:
    document = read(f"<html><title>停水和缴费_水利局</title>{MENU}<div class='box'><h1>停水和缴费</h1>{text}</div>{FOOT}")
    alone = read(f"<html><h1>停水和缴费</h1>{text}", "full")
    assert document.text == alone.text and not document.warnings


@pytest.mark.parametrize("title", ["Towers", "Towers - River News", "水站 | Towers", "Towers_水利局"])
def test_a_headline_of_one_word_is_recognised_by_the_title(title: str) -> None:
    page = f"<html><title>{title}</title>{MENU}<div><h1>Towers</h1><p>The tower at Willow Ford is nine metres high.</p></div>{FOOT}"
    assert read(page).text == "Towers\n\nThe tower at Willow Ford is nine metres high."


def test_a_headline_in_what_is_left_out_is_no_place_to_look_for_text() -> None:
    page = "<html><title>停水和缴费_水利局</title><aside><h1>停水和缴费</h1><p>某某水利局欢迎您的光临。</p></aside><p>暂无。</p>"
    document = read(page)
    assert "暂无。" in document.text and document.warnings


def test_signature_and_date_below_a_notice_stay() -> None:
    page = f"<title>通知</title>{MENU}<div class='TRS_Editor'>{paragraphs(CHINESE)}<p>水利局</p><p>2026年5月3日</p></div>{FOOT}"
    assert read(page).text.endswith("\n\n水利局\n\n2026年5月3日")


def test_a_page_without_running_text_is_kept_whole_and_says_so() -> None:
    page = "<title>Links</title><ul>" + "".join(f"<li><a href='/{n}'>Place number {n}</a></li>" for n in range(9)) + "</ul><p>Short.</p>"
    document = read(page)
    assert document.text == read(page, "full").text and "Place number 8" in document.text
    assert document.warnings == ("no main content stood out, so that the whole page was kept",)


def test_auto_keeps_a_page_whole_where_the_chosen_part_is_little_of_its_text() -> None:
    answers = "".join(f'<div class="comment"><p>{text} {n}</p></div>' for n in range(6) for text in NEWS)
    page = f"<title>The weir</title><div class='entry-content'><h1>The weir</h1>{paragraphs(NEWS)}</div><div id='comments'>{answers}</div>"
    assert "ago, and it still divides the water of the Min without a dam. 5" in read(page, "auto").text
    assert read(page, "article").text == "\n\n".join(["The weir", *NEWS])
    plain = f"<title>The weir</title><h1>The weir</h1>{paragraphs(NEWS)}<div class='sidebar'><p>{NEWS[0]}</p></div>"
    assert read(plain, "auto").text == "\n\n".join(["The weir", *NEWS])


def test_code_by_lines_and_breaks_keeps_them_and_loses_the_numbers_beside_it() -> None:
    page = """<table><tr><td><pre>1\n2</pre></td><td><pre class="lang-c">int a;\nint b;</pre></td></tr></table>
    <pre><code>x = 1<br>y = 2</code></pre><pre><div>one</div><div>two</div></pre><pre><span class="lineno">1 </span>z</pre>"""
    assert [text for _, text in blocks(read(page, "full"))] == ["```c\nint a;\nint b;\n```", "x = 1\ny = 2", "one\ntwo", "z"]


def test_links_are_written_out_when_asked_for() -> None:
    links = "<p>See <a href='/min'>the <b>Min</b></a>, <a href='#x'>below</a>.</p><ul><li><a href='b'>sand</a> and stones</li></ul>"
    page = f"<html><h1>Weir</h1>{links}{paragraphs(NEWS)}"
    placed = replace(raw(page.encode(), "page.html"), item=SourceItem("k", url="https://river.example/docs/a"))
    text = parse(placed, {"content": "article", "links": "inline"}).text
    assert "See [the Min](https://river.example/min), [below](https://river.example/docs/a#x)." in text
    based = replace(placed, data=placed.data.replace(b"<html>", b"<html><base href='/guide/'>"))
    assert "[sand](https://river.example/guide/b)" in parse(based, {"content": "article", "links": "inline"}).text
    assert "- [sand](https://river.example/docs/b) and" in text and "river.example" not in parse(placed, {"content": "article"}).text


@pytest.mark.parametrize("options", [{"content": "some"}, {"links": "yes"}])
def test_an_unknown_value_of_an_option_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadRequest) as caught:
        parse(raw(b"<p>x</p>", "a.html"), options)
    assert next(iter(options)) in caught.value.detail


def test_ten_thousand_levels_of_nesting_do_no_harm() -> None:
    page = "<div>" * 10_000 + NEWS[0] * 4 + "</div>" * 10_000
    assert NEWS[0] in read(page).text


OPENED = ("div class=comments", "div class=sidebar", "article", "p", "ul", "li", "table", "tr", "td", "pre", "h1", "a href=/x", "form")
TAGS = [f"<{tag}>" for tag in OPENED] + [f"</{tag.split()[0]}>" for tag in OPENED]
HEADLINE = ("<title>How the weir works</title>", "<h1>How the weir works</h1>", "<nav><h2>How the weir works</h2>")
PIECES = st.sampled_from([*TAGS, *NEWS, *CHINESE, *HEADLINE, "Advertisement", "short"])


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=60))
def test_whatever_the_page_the_positions_lie_in_the_text(pieces: list[str]) -> None:
    try:
        document = read("<html>" + "".join(pieces))
    except PipelineError as error:
        assert error.code in {"no_text", "empty"}
        return
    for start, end in [*((s.start, s.end) for s in document.sections), *((t.start, t.end) for t in document.tables)]:
        assert 0 <= start < end <= len(document.text) and document.text[start:end].strip()
