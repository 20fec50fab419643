"""Kinds of sources: what each needs to be told, and where its connector is.

Others add a connector in a package of their own, by an entry point of the group ``dujiang.connectors`` that names a `SourceKind`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import cast

from pipeline import registry
from pipeline.contracts.sources import SourceKind, SourceOption, SourceSpec
from pipeline.errors import BadRequest, Unsupported
from pipeline.protocols import Connector, Surroundings

GROUP = "dujiang.connectors"

KINDS: Mapping[str, SourceKind] = MappingProxyType(
    {
        "folder": SourceKind(
            "folder",
            "A folder on this machine, looked through again and again.",
            "pipeline.load.folder:create",
            (SourceOption("path", "Absolute path of the folder.", required=True, scope=True),),
            local=True,
        ),
        "feishu": SourceKind(
            "feishu",
            "Folders, wiki spaces and documents of Feishu (飞书) or Lark.",
            "pipeline.load.feishu.connector:create",
            (
                SourceOption("app_id", "The app's id, cli_….", required=True),
                SourceOption("app_secret", "The app's secret.", required=True, secret=True),
                SourceOption("folder_token", "Folders with all below them: token or address, separated by commas.", scope=True),
                SourceOption("wiki_space", "Wiki spaces by number, separated by commas; `all`: every one that the app may see.", scope=True),
                SourceOption("links", "Single documents, sheets, bases, files or wiki pages by address, separated by commas.", scope=True),
                SourceOption("base_url", "`lark`, or an address of the API; Feishu's when left out."),
                SourceOption("encrypt_key", "The app's key for events.", secret=True),
                SourceOption("verification_token", "The app's token for events.", secret=True),
                SourceOption("content", "`blocks`, or `export` for documents as DOCX."),
                SourceOption("media", "`ask` whether each image and attachment may be had, or `leave` them."),
                SourceOption("rate_percent", "Share of the vendor's limits to use (100)."),
            ),
            events=True,
        ),
        "web": SourceKind(
            "web",
            "Pages of web sites, crawled politely.",
            "pipeline.load.web.connector:create",
            (
                SourceOption(
                    "entry_url", "First page of the site; its folder and all below belong to it. Several with commas.", required=True, scope=True
                ),
                SourceOption("max_pages", "Most pages (2000)."),
                SourceOption("scope", "What belongs to it besides: /path, host, host/path or *.host, separated by commas.", scope=True),
                SourceOption("exclude", "What does not, in the same form.", scope=True),
                SourceOption("sitemap", "Address of a sitemap, or none; by default what robots.txt names."),
                SourceOption("delay_s", "Least seconds between two requests to a host (0.5); its crawl delay counts, too."),
                SourceOption("max_depth", "Most links from the entry (30)."),
                SourceOption(
                    "render", "auto: pages drawn by scripts are drawn first, by the extra dujiang[browser]; none (the default): they are failures."
                ),
                SourceOption("content", "What is kept of pages: article (the default), auto or full."),
                SourceOption("links", "inline: addresses of links are written into the text; none (the default)."),
                SourceOption("user_agent", "What the site is told of us; robots.txt goes by it (dujiang)."),
                SourceOption("authorization", "Authorization header for the entry's own host.", secret=True),
                SourceOption("cookie", "Cookie header for the entry's own host.", secret=True),
            ),
        ),
        "yuque": SourceKind(
            "yuque",
            "Books of a Yuque (语雀) user or team.",
            "pipeline.load.yuque.connector:create",
            (
                SourceOption("token", "Access token of the user or team.", required=True, secret=True),
                SourceOption("user_id", "Login of the user or team; the token's own when left out.", scope=True),
                SourceOption("books", "Only these books, by namespace (login/slug) or number, separated by commas.", scope=True),
                SourceOption("base_url", "Address of an enterprise space."),
                SourceOption("requests_per_hour", "Calls an hour that the token may make (5000)."),
                SourceOption("requests_per_day", "Calls a day that the token may make; 0: no such limit."),
            ),
        ),
    }
)
"""Kinds that come with the house."""


def kinds() -> dict[str, SourceKind]:
    """Every kind that is installed, by name. An entry point that cannot be imported is left out; `kind` says why."""
    found = dict(KINDS)
    for entry in entry_points(group=GROUP):
        try:
            found.setdefault(entry.name, cast("SourceKind", entry.load()))
        except (ImportError, AttributeError):
            continue
    return dict(sorted(found.items()))


def kind(name: str) -> SourceKind:
    """Raises Unsupported, naming the kinds there are."""
    if name in KINDS:
        return KINDS[name]
    for entry in entry_points(group=GROUP, name=name):
        try:
            return cast("SourceKind", entry.load())
        except (ImportError, AttributeError) as error:
            raise Unsupported(
                f"the connector {name!r} of {entry.value} cannot be loaded ({type(error).__name__})",
                hint="Install or repair its package.",
                code="broken_connector",
            ) from error
    raise Unsupported(f"there is no kind of source {name!r}", hint=f"Use one of: {', '.join(kinds())}.", code="unknown_kind")


def check(described: SourceKind, given: Mapping[str, str]) -> None:
    """Raises BadRequest naming an option that is unknown, missing or empty. `given` holds options and secrets alike."""
    known = {option.name: option for option in described.options}
    for name in given:
        if name not in known:
            raise BadRequest(
                f"a source of kind {described.name!r} has no option {name!r}",
                hint=f"Use: {', '.join(known) or 'none'}.",
                pointer=f"/options/{name}",
                code="unknown_option",
            )
    for option in described.options:
        if option.required and not given.get(option.name, "").strip():
            raise BadRequest(
                f"a source of kind {described.name!r} needs {option.name}",
                hint=option.about,
                pointer=f"/{'secrets' if option.secret else 'options'}/{option.name}",
                code="missing_option",
            )


def create(spec: SourceSpec, around: Surroundings) -> Connector:
    """The connector of a source. Raises Unsupported for a kind that is not installed, BadRequest for options that make no sense."""
    described = kind(spec.kind)
    return cast("Connector", registry.find({spec.kind: described.factory}, spec.kind, what="connector")(spec, around))
