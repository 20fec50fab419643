"""A wiki of any size for measurements: the same pages for the same seed, each with one fact that no other page holds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.simulators import feishu_blocks as b
from tests.simulators.feishu_library import bars
from tests.simulators.feishu_model import Library, Node, Space, Table, Thing

STATIONS = ("Qingshan 青山", "Upper Ford 上渡", "Stone Bridge 石桥", "Willow Bend 柳湾", "Old Mill 老磨坊", "Nankou 南口")
TOPICS = ("Gauge check", "读数核对", "Battery", "蓄电池", "Radio", "电台", "Flood drill", "防汛演练", "Path and dike", "堤防巡查")
COLOURS = ("amber", "violet", "teal", "crimson", "indigo", "olive", "ivory", "copper")
LINES = (
    "The level at {station} stood at {level} m at {hour}:00 and fell by {fall} cm until the evening.",
    "{station}站{hour}时水位{level}米，到傍晚回落{fall}厘米。",
    "The keeper of {station} cleaned the staff, cut the reeds and wrote {fall} lines into the book.",
    "{station}站看守人清洗水尺、割除芦苇，在值班簿上写了{fall}行。",
    "A reading was missing at {hour}:00; the radio answered at the second call, {fall} minutes later.",
    "{hour}时缺一次读数，第二次呼叫后电台有了回答，前后相隔{fall}分钟。",
)
FAN = 20
"""Pages below one page."""


@dataclass(slots=True)
class Grown:
    """What was made. `facts`: question, answer, token of the only object that holds it."""

    nodes: list[Node] = field(default_factory=list[Node])
    facts: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])


def grow(library: Library, pages: int = 5000, *, seed: int = 1, spaces: int = 2) -> Grown:
    """Wiki pages in trees, nineteen in twenty of them documents; a sheet or base, and now and then a picture or a long page, among them."""
    chance = random.Random(seed)
    grown = Grown()
    for number in range(spaces):
        space = library.space(f"Wiki {number + 1}")
        made: list[Node] = []
        for index in range(pages // spaces + (number < pages % spaces)):
            parent = made[(index - FAN) // FAN] if index >= FAN else None
            made.append(_page(library, space, parent, chance, grown))
        grown.nodes += made
    return grown


def stir(library: Library, grown: Grown, *, seed: int = 2, share: float = 0.01) -> dict[str, int]:
    """What happens in a day: of that share of the documents most are edited, some renamed, moved or deleted. How many of each.

    Facts stay true: an edit keeps its page's, and what is deleted is asked for no more.
    """
    chance = random.Random(seed)
    tags = {token: tag for _, tag, token in grown.facts}
    nodes = [node for node in grown.nodes if library.thing(node).type == "docx" and not library.children(library.spaces[node.space], node.token)]
    done = {"edited": 0, "renamed": 0, "moved": 0, "deleted": 0}
    for node in chance.sample(nodes, min(len(nodes), round(len(grown.nodes) * share))):
        thing, what = library.thing(node), chance.choices(list(done), (70, 10, 10, 10))[0]
        if what == "edited":
            library.edit(thing, [*_text(chance, 8), b.text(f"The board was painted anew; its seal is still {tags[thing.token]}.")])
        elif what == "renamed":
            library.rename(thing, f"{thing.title} (renamed)")
        elif what == "moved":
            library.move_node(node)
        else:
            library.delete(node)
            del tags[thing.token]
        done[what] += 1
    grown.facts = [fact for fact in grown.facts if fact[2] in tags]
    return done


def _page(library: Library, space: Space, parent: Node | None, chance: random.Random, grown: Grown) -> Node:
    number = len(grown.facts) + 1
    station = chance.choice(STATIONS)
    title = f"{chance.choice(TOPICS)} {number:05d}"
    tag = f"{chance.choice(COLOURS)}-{number:05d}-{chance.randrange(1000):03d}"
    fact = f"The seal on board G-{number:05d} is {tag}."
    kind = chance.random()
    if kind < 0.03:
        rows = [["Board", "Seal", "Station"], [f"G-{number:05d}", tag, station], *([f"B-{n}", "none", station] for n in range(chance.randint(3, 30)))]
        thing: Thing = library.sheet(title, {"Boards": rows}, loose=True)
    elif kind < 0.05:
        fields = [("Board", 1), ("Seal", 1), ("Station", 3)]
        thing = library.bitable(
            title, [Table("tblboards1", "Boards", fields, [{"Board": f"G-{number:05d}", "Seal": tag, "Station": station}])], loose=True
        )
    else:
        blocks = [b.heading(1, title), *_text(chance, chance.randint(4, 18)), b.text(fact)]
        if kind < 0.07:
            blocks.append(b.image(library.medium(bars([chance.uniform(2, 6) for _ in range(6)], 8), f"{number}.png").token, f"Levels at {station}"))
        if kind > 0.995:
            blocks += _text(chance, 700)
        thing = library.docx(title, blocks, loose=True)
    grown.facts.append((f"Which seal is on board G-{number:05d}?", tag, thing.token))
    return library.node(space, thing, parent)


def _text(chance: random.Random, lines: int) -> list[b.Block]:
    made: list[b.Block] = []
    for _ in range(lines):
        words = chance.choice(LINES).format(
            station=chance.choice(STATIONS).split()[chance.randrange(2)],
            level=f"{chance.uniform(1, 7):.2f}",
            hour=chance.randrange(24),
            fall=chance.randint(2, 40),
        )
        made.append(chance.choice((b.text, b.text, b.bullet))(words))
    return made
