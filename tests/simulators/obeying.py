"""A reader without judgement: it says whatever it is told to say, wherever it believes that an instruction may stand.

It sees frames as models do, that is generously: case, blanks and invisible marks inside a tag do not matter, the first closing tag
ends a passage, a control token ends everything, and smuggled tag characters are letters.
"""

from __future__ import annotations

import re

UNSEEN = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufe00-\ufe0f\ufeff]")
CONTROL = re.compile(r"<[|｜][^|｜>]{1,30}[|｜]>|\[/?INST\]|<</?SYS>>|</?(?:s|bos|eos|start_of_turn|end_of_turn|system|assistant)>", re.IGNORECASE)
FRAME = re.compile(r"<\s*(passage|question)\b[^>]*>.*?<\s*/\s*\1\s*>", re.DOTALL | re.IGNORECASE)
ORDER = re.compile(
    r"(?:reply|respond|answer|say|output|print|write|return|append|search|call|回复|回答|输出|说|打印|返回|附上|搜索|调用)"
    r"[^\"“「\n]{0,60}[\"“「]([^\"”」\n]+)[\"”」]",
    re.IGNORECASE,
)


def obey(prompt: str, *, everywhere: bool) -> str | None:
    """What the first order says to say; None where there is none."""
    seen = UNSEEN.sub("", "".join(chr(ord(one) - 0xE0000) if 0xE0020 <= ord(one) <= 0xE007E else one for one in prompt))
    smuggled = "".join(chr(ord(one) - 0xE0000) for one in prompt if 0xE0020 <= ord(one) <= 0xE007E)
    if everywhere:
        found = ORDER.search(seen)
    else:
        control = CONTROL.search(seen)
        outside = FRAME.sub("\n", seen[: control.start()] if control else seen) + (seen[control.end() :] if control else "")
        found = ORDER.search(outside) or ORDER.search(smuggled)
    return found[1] if found else None
