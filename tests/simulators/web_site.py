"""The demonstration's web site: the public pages of a river cooperative, in two languages, with what real sites have around their text."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulators.demonstrations import Demonstration
from tests.simulators.served import Clock
from tests.simulators.web import Site, Web

_MENU = "".join(
    f'<a href="{path}">{name}</a>'
    for path, name in (
        ("/handbook/", "Handbook"),
        ("/handbook/boats.html", "Boats"),
        ("/handbook/levels.html", "Levels"),
        ("/handbook/zh/", "中文"),
        ("/shop/", "Shop"),
    )
)
_FOOT = "<footer>Baisha River Gauge Cooperative, Nankou. Everything on these pages is invented.</footer>"


def fill(site: Site) -> None:
    """Nine pages, a sitemap that knows one which no page links to, robots.txt with a closed corner, a redirect, and a printed double."""
    site.robots = f"User-agent: *\nDisallow: /handbook/drafts/\nSitemap: /handbook/sitemap.xml\n# {site.name}\n"
    _write(
        site,
        "/handbook/",
        "Handbook for visitors",
        "<p>The cooperative keeps its boats, its towers and its visitors' rules on these pages.</p>"
        + _links(
            "/handbook/boats.html", "/handbook/levels.html", "/handbook/towers", "/handbook/zh/", "/handbook/drafts/plan.html", "/handbook/old-boats"
        ),
    )
    _write(
        site,
        "/handbook/boats.html",
        "Boats",
        "<p>The cooperative owns two flat boats, the <b>Egret</b> and the <b>Kingfisher</b>. A boat goes out with two people, never with one.</p>"
        "<h2>Before it goes out</h2><ol><li>Both wear a life vest.</li><li>The duty room knows where they go and when they will be back.</li>"
        "<li>Above 2.40 metres at Stone Bridge no boat goes out.</li></ol>"
        "<h2>Fuel</h2><table><tr><th>boat</th><th>tank</th><th>range</th></tr><tr><td>Egret</td><td>24 litres</td><td>70 km</td></tr>"
        "<tr><td>Kingfisher</td><td>18 litres</td><td>55 km</td></tr></table>" + _links("/handbook/boats-print.html"),
        head='<link rel="canonical" href="/handbook/boats.html">',
    )
    _write(
        site,
        "/handbook/boats-print.html",
        "Boats (to print)",
        "<p>The cooperative owns two flat boats, the Egret and the Kingfisher.</p>",
        head='<link rel="canonical" href="/handbook/boats.html">',
    )
    _write(
        site,
        "/handbook/levels.html",
        "How to read a level",
        "<p>A staff gauge has a mark every two centimetres and a number every ten. Read the lower edge of the water, and wait for three waves.</p>"
        '<h2>By telephone</h2><p>The radio answers to a short message:</p><pre><code class="language-text">LEVEL 3\n'
        "STATION 3 1.87 M RISING</code></pre>"
        "<blockquote>When in doubt, read twice.</blockquote>",
    )
    _write(site, "/handbook/towers", "Towers", "<p>The observation tower at Willow Ford is nine metres high and carries four people at most.</p>")
    _write(
        site,
        "/handbook/zh/",
        "参观须知",
        "<p>参观水位站须提前三天预约，每次不超过十二人。</p><p>雷达水位计下方五米之内不得撑伞或放风筝，以免影响读数。</p>"
        + _links("/handbook/zh/桥.html"),
    )
    _write(site, "/handbook/zh/%E6%A1%A5.html", "石桥站", "<p>石桥站建在一座一九三六年的三孔石桥上，桥面禁止停车。</p>", charset="gb18030")
    _write(site, "/handbook/lost.html", "Lost and found", "<p>What is found at a station is kept in the duty room for ninety days.</p>")
    _write(site, "/handbook/drafts/plan.html", "Draft", "<p>Not for readers yet.</p>")
    _write(site, "/shop/", "Shop", "<p>Postcards of all six stations.</p>")
    site.redirect("/handbook/old-boats", "/handbook/boats.html", 301)
    site.sitemap("/handbook/sitemap.xml", ["/handbook/lost.html", "/handbook/boats.html"])


def _write(site: Site, path: str, title: str, content: str, *, head: str = "", charset: str = "utf-8") -> None:
    text = (
        f'<!doctype html><html><head><meta charset="{charset}"><title>{title}</title>{head}</head><body><nav>{_MENU}</nav>'
        f"<main><h1>{title}</h1>{content}</main>{_FOOT}</body></html>"
    )
    site.put(path, text.encode(charset), "text/html")


def _links(*paths: str) -> str:
    listed: Sequence[str] = [f'<li><a href="{path}">{path}</a></li>' for path in paths]
    return f"<ul>{''.join(listed)}</ul>"


def _made() -> Web:
    simulator = Web(Clock(real=True))
    fill(simulator.site())
    return simulator


def _change(simulator: Web) -> str:
    site = simulator.site()
    _write(site, "/handbook/towers", "Towers", "<p>The observation tower at Willow Ford is nine metres high and carries six people at most.</p>")
    site.put("/handbook/lost.html", b"", "text/html", status=410, etag="")
    return "the tower carries six people now, and the page about what was lost and found is gone (410)."


DEMONSTRATION = Demonstration(
    "A small web site: a crawl with a sitemap, a closed corner, a redirect and a printed double.",
    _made,
    lambda simulator: {"entry_url": simulator.address(path="/handbook/"), "delay_s": "0"},
    lambda simulator: {},
    ("参观水位站要提前几天预约？", "How many people may be on the tower at Willow Ford?"),
    _change,
    "How many people may be on the tower at Willow Ford?",
)
