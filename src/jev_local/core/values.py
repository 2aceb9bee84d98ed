"""What values look like in a text: dates, ids, names and numbers, in English and Japanese, as a table of patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "date-time", "id", "number", "user-name", "white-space", "key-order", "template", "model", "text", "question"
]
"""id: a UUID, a hash or another name made of letters and digits. key-order: the same JSON members in another order.
template: another system text, other tools or other roles. question: what comes behind all that can be reused."""


@dataclass(frozen=True, slots=True)
class Rule:
    """both: the other text has to have such a value there as well, as one alone says too little. A group named `value`
    is the part that counts."""

    kind: Kind
    pattern: re.Pattern[str]
    both: bool


def _rule(kind: Kind, pattern: str, *, both: bool = False) -> Rule:
    return Rule(kind, re.compile(pattern, re.MULTILINE), both)


_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?"
    r"|Nov(?:ember)?|Dec(?:ember)?)"
)
_WEEKDAY = r"(?:(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?)"
_ZONE = r"(?:\s?(?:Z\b|UTC\b|GMT\b|JST\b|[+-]\d{2}:?\d{2}))?"
_CLOCK = rf"\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:[.,]\d{{1,9}})?)?(?:\s?[AaPp]\.?[Mm]\b\.?)?{_ZONE}"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"

_COUNT = "[0-9０-９〇一二三四五六七八九十元]"
_JA_CLOCK = rf"(?:午前|午後)?\s?{_COUNT}{{1,3}}時(?:{_COUNT}{{1,3}}分)?(?:{_COUNT}{{1,3}}秒)?"
_JA_WEEKDAY = r"(?:\s?[(（]?[月火水木金土日](?:曜日?)?[)）]?)?"
_JA_DAY = rf"{_COUNT}{{1,3}}月(?:\s?{_COUNT}{{1,3}}日)?{_JA_WEEKDAY}(?:\s?{_JA_CLOCK})?"

_EQUALS = r"""["'”」]?\s*[:=：＝>]\s*["'“「]?"""
"""Between a label and its value, in prose, in JSON and in XML."""

_WORD = r"A-Za-z0-9_\-"
_PERSON = (
    r"user|customer|client|recipient|patient|employee|caller|requester|my name"
    r"|(?:user|customer|client|full|first|last|display|contact|recipient|patient)[ _-]?name"
    r"|顧客名?|お?客様名?|氏名|お?名前|ユーザー?名?|利用者名?|担当者?名?|会員名?|宛名|患者名?"
)
_LETTERS = r"[^\W\d_](?:[^\W\d_]|[.'’@-])*"
_NAME = rf"{_LETTERS}(?:[ 　・]{_LETTERS}){{0,3}}"
_NAME_ENDS = r"""(?=[ 　]*(?:$|["'”」,;、。）)}\]<（(]))"""
_TITLE = r"(?:Mr|Mrs|Ms|Mx|Dr|Prof)\.?"
_CAPITAL = r"[^\W\d_a-z][\w'’-]*"
_ID_LABEL = r"id|uuid|guid|token|nonce|ref|番号|コード"
_CLOCK_LABEL = r"time|date|timestamp|created|updated|now|epoch|日時|時刻|日付"
_ONLY_ENDS_LIKE_IT = "仕同多模一異有各皆神客"

RULES = (
    # ISO 8601; the same with slashes; dots only with a year of four digits, as 1.2.3 is a version.
    _rule("date-time", rf"(?<![\d.])\d{{4}}-\d{{1,2}}(?:-\d{{1,2}})?(?:[T ]\s?{_CLOCK})?(?![\d-])"),
    _rule("date-time", rf"(?<![\d/])\d{{4}}/\d{{1,2}}/\d{{1,2}}(?:\s{_CLOCK})?(?![\d/])"),
    _rule("date-time", rf"(?<![\d/])\d{{1,2}}/\d{{1,2}}/\d{{2,4}}(?:\s{_CLOCK})?(?![\d/])"),
    _rule("date-time", r"(?<![\d.])(?:\d{4}\.\d{1,2}\.\d{1,2}|\d{1,2}\.\d{1,2}\.\d{4})(?!\d)"),
    _rule(
        "date-time",
        rf"\b(?:{_WEEKDAY},?\s)?(?:{_DAY}\s(?:of\s)?{_MONTH}\b\.?(?:,?\s\d{{4}})?"
        rf"|{_MONTH}\.?\s{_DAY}\b(?:,?\s\d{{4}})?|{_MONTH}\.?,?\s\d{{4}}\b)(?:,?\s(?:at\s)?{_CLOCK})?",
    ),
    _rule("date-time", rf"(?:(?:令和|平成|昭和|大正|明治)\s?)?{_COUNT}{{1,4}}年(?:\s?{_JA_DAY})?"),
    _rule("date-time", _JA_DAY),
    _rule("date-time", r"(?<![A-Za-z0-9])[RHS]\d{1,2}[./]\d{1,2}[./]\d{1,2}(?!\d)"),
    _rule("date-time", rf"(?<![\d:]){_CLOCK}(?![\d:])"),
    _rule("date-time", _JA_CLOCK),
    _rule("date-time", r"\b(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b", both=True),
    _rule("date-time", r"[月火水木金土日]曜日?", both=True),
    # Seconds or milliseconds since 1970, beside a word that says so.
    _rule("date-time", rf"(?i:{_CLOCK_LABEL})(?:[_ ]?(?i:at|ms|s))?{_EQUALS}(?P<value>1\d{{9}}(?:\d{{3}})?)(?!\d)"),
    _rule("id", r"(?<![0-9a-fA-F])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9a-fA-F])"),
    _rule("id", rf"(?<![{_WORD}])(?=[A-Z]*\d)[0-9A-HJKMNP-TV-Z]{{26}}(?![{_WORD}])"),  # a ULID
    _rule("id", rf"(?<![{_WORD}])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{{12,128}}(?![{_WORD}])"),
    _rule(
        "user-name",
        rf"(?<![\w-])(?i:user[ _-]?name|login|ユーザー?名){_EQUALS}(?P<value>[A-Za-z][\w.@+-]*){_NAME_ENDS}",
        both=True,
    ),
    _rule("user-name", rf"(?<![\w-])(?i:{_PERSON}){_EQUALS}(?P<value>{_NAME}){_NAME_ENDS}", both=True),
    _rule("user-name", rf"""(?:^|["'{{(<,])\s*(?i:name){_EQUALS}(?P<value>{_NAME}){_NAME_ENDS}""", both=True),
    _rule("user-name", r"(?:名前|氏名)は(?P<value>[一-鿿々ァ-ヶーA-Za-z・ 　]{1,20}?)(?=です|と申|。|、|$)", both=True),
    _rule(
        "user-name",
        rf"\b(?:(?:Dear|Hello|Hi)\s(?:{_TITLE}\s)?|{_TITLE}\s)(?P<value>{_CAPITAL}(?:\s{_CAPITAL}){{0,3}})",
        both=True,
    ),
    # A polite ending, and none of the words that only end like it: 仕様, 同様, お客様.
    _rule(
        "user-name",
        r"(?P<value>[一-鿿々ァ-ヴー・A-Za-z]{1,16}(?:[ 　][一-鿿々ァ-ヴー]{1,8})?)"
        rf"(?<![{_ONLY_ENDS_LIKE_IT}])[ 　]?(?:様|さま|さん|殿)",
        both=True,
    ),
    _rule("user-name", r"(?:^|[、。,：:「])(?P<value>[ぁ-ん]{2,8}?)(?:様|さま|さん)", both=True),
    _rule("id", rf"(?i:{_ID_LABEL}){_EQUALS}#?(?P<value>[{_WORD}.:/]{{2,128}})", both=True),
    _rule(
        "id",
        rf"(?<![{_WORD}])(?=[{_WORD}]*\d)(?=[{_WORD}]*[A-Za-z])[{_WORD}]{{4,128}}(?![{_WORD}])",
        both=True,
    ),
    _rule("number", r"(?<![A-Za-z_])[-+]?\d+(?:[.,]\d+)*", both=True),
)
"""The first that fits wins."""
