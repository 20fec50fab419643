"""Documents to measure with: a folder with a ``manifest.jsonl``, any folder of files, or a made-up corpus."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WORDS_EN = (
    "river gauge level station water report duty officer battery sensor village flood bridge record season annual "
    "measure reading data alarm warning danger telephone board meeting committee member budget repair schedule valley"
).split()
WORDS_ZH = (
    "水位 测站 值班 手册 洪水 石桥 记录 电池 更换 雷达 河流 上游 下游 村庄 电话 警报 会议 委员会 预算 维修 每月 检查 校准 数据 报告 雨季".split()
)


@dataclass(frozen=True, slots=True)
class File:
    """One document: its key, and the file it is read from."""

    key: str
    path: Path


def files(folder: Path, number: int, *, changed: bool) -> Iterator[File]:
    """The first `number` documents; with `changed`, those that have a second version are read in it.

    A manifest's line is ``{"id", "path", "changed"?}``, paths relative to the folder.
    """
    manifest = folder / "manifest.jsonl"
    if not manifest.is_file():
        for path in sorted(path for path in folder.rglob("*") if path.is_file())[:number]:
            yield File(path.relative_to(folder).as_posix(), path)
        return
    with manifest.open(encoding="utf-8") as lines:
        for _, line in zip(range(number), lines, strict=False):
            entry = json.loads(line)
            second = entry.get("changed") if changed else None
            yield File(str(entry["id"]), folder / (second or entry["path"]))


def make(folder: Path, number: int, *, seed: int = 7) -> Path:
    """Write `number` Markdown pages of made-up prose, half English, half Chinese, every hundredth with a changed version."""
    rng = random.Random(seed)
    (folder / "docs").mkdir(parents=True, exist_ok=True)
    (folder / "changed").mkdir(exist_ok=True)
    with (folder / "manifest.jsonl").open("w", encoding="utf-8") as manifest:
        for index in range(number):
            text = _page(rng, index)
            entry = {"id": f"page-{index}", "path": f"docs/{index}.md"}
            (folder / entry["path"]).write_text(text, encoding="utf-8")
            if index % 100 == 0:
                entry["changed"] = f"changed/{index}.md"
                (folder / entry["changed"]).write_text(text + "\n\nOne more line.\n", encoding="utf-8")
            manifest.write(json.dumps(entry) + "\n")
    return folder


def _page(rng: random.Random, index: int) -> str:
    chinese = index % 2 == 1
    parts = [f"# 第{index}页" if chinese else f"# Page {index}"]
    for section in range(rng.randint(2, 10)):
        parts.append(f"## {'小节' if chinese else 'Section'} {section}")
        words = WORDS_ZH if chinese else WORDS_EN
        join, stop = ("", "。") if chinese else (" ", ". ")
        parts.append("".join(join.join(rng.choices(words, k=rng.randint(8, 20))) + stop for _ in range(rng.randint(3, 9))))
    return "\n\n".join(parts) + "\n"
