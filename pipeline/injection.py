"""Sentences of a document that speak to the model instead of the reader.

Framing keeps a model from taking them for instructions; if one obeys all the same, what it says then rests on such a sentence alone.
Therefore they support nothing: an answer that only they carry is unsupported, and can be flagged or withheld. A document about
prompt injection is read as ever, its examples merely do not count as evidence.
"""

from __future__ import annotations

import re

from pipeline.contracts import Span
from pipeline.prompt import OPENING, REFUSES, SMUGGLED

TRIGGER = re.compile(
    "ignore|disregard|forget|override|bypass|new |updated |hidden |secret |system |you are |from now on|act as |pretend |reply|respond"
    "|answer|output|print|say|write|return|emit|append|reveal|repeat|show|leak|call |invoke |use |run |execute "
    '|"tool|"function_call|assistant|ai|language model|chatbot|llm'
    "|忽略|无视|忘记|不要理会|推翻|你现在是|从现在|你不再是|请扮演|假装你|系统提示|新的指令|最高指令"
    "|只|仅|必须|直接|请|调用|执行|使用|泄露|透露|复述|输出"
)
"""Where an order may begin. Literals only, for it walks over every passage: `COMMAND` is tried where it matches, and only there."""
COMMAND = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.\n]{0,40}\b(?:previous|prior|above|earlier|all|your|these|any|system|safety)\b"
    r"[^.\n]{0,40}\b(?:instructions?|rules?|prompts?|directions?|guidelines?|context|messages?)"
    r"|\b(?:new|updated|hidden|secret|system)\s+(?:instructions?|directives?|prompt)\b"
    r"|\byou are (?:now|no longer)\b|\bfrom now on\b[^.\n]{0,40}\b(?:you|act|answer|reply|respond)\b|\bact as (?:an?|the)\b|\bpretend (?:to be|you)\b"
    r"|\b(?:reply|respond|answer|output|print|say|write|return|emit)\s+(?:only|just|exactly|nothing but|verbatim|in json|with|this|the following)\b"
    r"|(?:^|(?<=[.:;!?,])|(?<=[.:;!?,] )|(?<=\bmust )|(?<=\balways )|(?<=\bshould )|(?<=\bplease )|(?<=\bthen ))"
    r"(?:reply|respond|answer|output|say|print|append|write)\b[^.\n\"“]{0,20}[\"“]"
    r"|\b(?:reveal|repeat|print|show|leak|output)\b[^.\n]{0,40}\b(?:system prompt|your (?:prompt|instructions|rules)|api keys?|passwords?|secrets?)\b"
    r"|\b(?:call|invoke|use|run|execute)\s+(?:the\s+)?(?:tool|function|plugin|shell|command)\b|\"(?:tool_calls?|function_call|tool_choice)\""
    r"|\b(?:assistant|ai|language model|chatbot|llm)\s*[,:]\s*(?:please|you must|always|do not|reply|answer|ignore)"
    r"|(?:忽略|无视|忘记|不要理会|推翻)[^。\n]{0,16}(?:指令|指示|规则|提示|要求|内容|设定)"
    r"|你现在是|从现在起|从现在开始|你不再是|请扮演|假装你|系统提示词|系统提示|新的指令|最高指令"
    r"|(?:只|仅|必须|直接|请)(?:回复|回答|输出|说|返回|打印)[^。\n]{0,12}[：:“\"「『]"
    r"|(?:调用|执行|使用)(?:工具|函数|命令|插件)|(?:泄露|透露|复述|输出)[^。\n]{0,12}(?:提示词|密钥|密码|系统)",
    re.MULTILINE,
)
TURN = re.compile(r"^\s*(?:#{2,3}\s*)?(?:user|human|assistant|system|用户|助手|系统)\s*[:：]\s*\S", re.IGNORECASE | re.MULTILINE)
"""A line that plays a turn of a conversation."""


def commands(text: str) -> list[Span]:
    """Spans of what is said to a model, in no order: from an order to the end of its paragraph, for it may go on there, and from a forged
    frame, a control token, a played turn or smuggled letters to the end of the text.
    """
    lower = text.lower()
    if len(lower) != len(text):
        lower = "".join(one if len(one.lower()) != 1 else one.lower() for one in text)
    begun = (COMMAND.match(lower, match.start()) for match in TRIGGER.finditer(lower))
    spans = [(match.start(), _paragraph_end(text, match.end())) for match in begun if match]
    return spans + [(match.start(), len(text)) for match in filter(None, (pattern.search(text) for pattern in (TURN, OPENING, REFUSES, SMUGGLED)))]


def _paragraph_end(text: str, at: int) -> int:
    end = text.find("\n\n", at)
    return len(text) if end < 0 else end
