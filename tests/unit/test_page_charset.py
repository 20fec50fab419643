"""Charsets of web pages: what headers and pages claim, rightly or not, against what the bytes are."""

from __future__ import annotations

import pytest

from pipeline.parse.charset import decode_page

TEXTS = {
    "simplified": "春天的清晨，河边的茶馆还没有开门，老人们已经坐在石凳上谈论今年的雨水。上游的水位比去年高出一尺，大家都说应该早些打开闸门，让下"
    "面的田里先得到水。管水的人点点头，却没有马上动手：他要等到县里的通知，也要看看鱼嘴那边的沙子是不是已经清完了。",
    "traditional": "春天的清晨，河邊的茶館還沒有開門，老人們已經坐在石凳上談論今年的雨水。上游的水位比去年高出一尺，大家都說應該早些打開閘門，讓下"
    "面的田裡先得到水。管水的人點點頭，卻沒有馬上動手：他要等到縣裡的通知，也要看看魚嘴那邊的沙子是不是已經清完了。",
    "japanese": "春の朝、川のそばの茶店はまだ開いていないのに、年寄りたちは石の腰掛けに座って今年の雨の話をしている。上流の水位は去年より高く、早"
    "く水門を開けるべきだと皆が言う。しかし番人はすぐには動かない。役所からの知らせを待ち、砂がきれいに取り除かれたかどうかを確かめ"
    "たいのだ。コーヒーとケーキも出る。",
    "korean": "봄날 아침, 강가의 찻집은 아직 문을 열지 않았지만 노인들은 벌써 돌 의자에 앉아 올해의 비에 대해 이야기하고 있다. 상류의 수위가"
    " 작년보다 높아서 모두가 수문을 일찍 열어야 한다고 말한다. 그러나 물을 지키는 사람은 바로 움직이지 않는다. 군청의 통지를 기다려"
    "야 하고 모래가 다 치워졌는지도 확인해야 한다.",
    "russian": "Весенним утром чайная у реки ещё закрыта, а старики уже сидят на каменных скамьях и говорят о дождях. Вода в верховьях стоит "
    "выше, чем в прошлом году, и все считают, что ворота надо открыть пораньше. Но смотритель не торопится: он ждёт известия из уезда "
    "и хочет проверить, убран ли песок.",
    "french": "Un matin de printemps, le café près de la rivière n'est pas encore ouvert, mais les anciens sont déjà assis là où l'on parle "
    "des pluies. L'eau est plus haute qu'à la même époque l'année dernière ; « il faut ouvrir tôt », répètent-ils. Le gardien, lui, "
    "préfère attendre : où en est le sable, s'est-il demandé.",
    "portuguese": "Numa manhã de primavera, a casa de chá junto ao rio ainda não abriu, mas os anciãos já estão sentados à conversa sobre as chuvas. "
    "A água está mais alta do que no ano passado, e todos dizem que as comportas deveriam abrir mais cedo. O guardião não tem pressa: "
    "aguarda a decisão e a inspeção das areias, são várias.",
    "german": "An einem Frühlingsmorgen ist das Teehaus am Fluss noch geschlossen, doch die Alten sitzen schon auf den Bänken und reden über "
    "den Regen. Das Wasser steht höher als im vorigen Jahr, und alle meinen, man müsse die Tore früher öffnen. Der Wärter wartet: "
    "Er möchte prüfen, ob der Sand schon ausgeräumt ist. Größe: 3 m².",
    "polish": "Pewnego wiosennego ranka herbaciarnia nad rzeką jest jeszcze zamknięta, a starsi już siedzą na kamiennych ławkach i mówią o deszczu. "
    "Woda stoi wyżej niż w zeszłym roku.",
    "greek": "Ένα ανοιξιάτικο πρωινό το καφενείο δίπλα στο ποτάμι δεν έχει ανοίξει ακόμη, αλλά οι γέροντες κάθονται ήδη στα πεζούλια και μιλούν "
    "για τις βροχές της χρονιάς.",
}
STYLE = "\n".join(f".column-{number} {{ margin: {number}px }}" for number in range(200))
LIES = ("utf-8", "gb2312", "big5", "shift_jis", "euc-kr", "iso-8859-1", "windows-1252")
LABELS = {
    "gbk": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "cp932": "shift_jis",
    "euc_jp": "euc-jp",
    "cp949": "euc-kr",
    "cp1251": "windows-1251",
}
WRITTEN = [
    ("simplified", "gbk"),
    ("simplified", "gb18030"),
    ("traditional", "gb18030"),
    ("traditional", "big5"),
    ("japanese", "cp932"),
    ("japanese", "euc_jp"),
    ("korean", "cp949"),
    ("russian", "cp1251"),
    ("russian", "koi8_r"),
    ("french", "cp1252"),
    ("portuguese", "cp1252"),
    ("german", "cp1252"),
    *((language, "utf-8") for language in TEXTS),
]
LENGTHS = (24, 60, 1000)


def page(text: str, charset: str, meta: str = "", *, before: str = "") -> bytes:
    head = f'<meta http-equiv="Content-Type" content="text/html; charset={meta}">' if meta else ""
    return (
        f"<!DOCTYPE html>\n<html><head>{before}{head}\n<title>{text[:10]}</title><style>{STYLE}</style><script>var a = {{x: 1}};</script></head>"
        f"<body class='home'><div class='nav'><a href='/'>{text[10:16]}</a></div>\n<div id='content'><p>{text}</p></div>"
        "<p>&copy; 2026</p></body></html>"
    ).encode(charset)


def cuts(language: str) -> list[str]:
    """Beginnings of a text that hold enough of its own letters to tell anything."""
    return [text for text in (TEXTS[language][:length] for length in LENGTHS) if sum(c > "\x7f" for c in text) >= 2]


@pytest.mark.parametrize(("language", "charset"), WRITTEN)
def test_a_page_without_a_declaration_is_read_right(language: str, charset: str) -> None:
    for text in cuts(language):
        assert f"<p>{text}</p>" in decode_page(page(text, charset))[0]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize(("language", "charset"), WRITTEN)
def test_a_lying_declaration_does_not_win_over_the_bytes(language: str, charset: str, lie: str) -> None:
    for text in cuts(language):
        assert f"<p>{text}</p>" in decode_page(page(text, charset, lie))[0], "in the page"
        assert f"<p>{text}</p>" in decode_page(page(text, charset), lie)[0], "in the header"
        assert f"<p>{text}</p>" in decode_page(page(text, charset, LABELS.get(charset, charset)), lie)[0], "in the header, the page being right"


@pytest.mark.parametrize(
    ("language", "charset"), [*WRITTEN, ("polish", "cp1250"), ("polish", "iso8859-2"), ("greek", "cp1253"), ("french", "iso8859-15")]
)
def test_a_true_declaration_is_believed_wherever_it_stands(language: str, charset: str) -> None:
    label = LABELS.get(charset, charset)
    for text in cuts(language):
        late = page(text, charset, label, before=f"<!-- {'x' * 2100} -->")
        for data, header in ((page(text, charset, label), ""), (page(text, charset), label.upper()), (late, "")):
            assert f"<p>{text}</p>" in decode_page(data, header)[0]


@pytest.mark.parametrize("charset", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("language", ["simplified", "traditional", "japanese", "korean", "russian", "french"])
def test_marks_and_wide_characters_win_over_any_declaration(language: str, charset: str) -> None:
    for text in cuts(language):
        assert f"<p>{text}</p>" in decode_page(page(text, charset, "gb2312"), "big5")[0]


def test_japanese_mail_encoding_is_recognised_far_into_the_page() -> None:
    text = TEXTS["japanese"].replace("、", "")
    assert text in decode_page(page(text, "iso2022_jp"))[0]


@pytest.mark.parametrize("language", ["simplified", "traditional", "japanese", "korean"])
def test_two_bad_bytes_do_not_make_a_page_unreadable(language: str) -> None:
    text = TEXTS[language]
    data = bytearray(page(text, "utf-8"))
    at = data.rfind(b"<p>&copy;")
    data[at:at] = b"\xff"
    data[at - 40 : at - 40] = b"\xfe"
    read, charset = decode_page(bytes(data), "gb2312")
    assert charset == "utf-8" and text[:80] in read and read.count("\ufffd") <= 4


def test_a_character_beyond_gbk_is_not_lost() -> None:
    text = TEXTS["simplified"] + "㐂、𠀀、€。"
    assert text in decode_page(page(text, "gb18030", "gb2312"), "gbk")[0]


def test_a_bad_byte_in_a_page_of_a_few_lines_is_replaced() -> None:
    text = TEXTS["traditional"][:60]
    assert text in decode_page(f"<p>{text}</p><p>{text}".encode() + b"\xff</p>")[0]


def test_scripts_in_another_charset_are_not_what_the_page_is_written_in() -> None:
    script = f"<script>// {TEXTS['simplified'] * 8}</script>".encode()
    data = page(TEXTS["simplified"], "gbk").replace(b"<script>", script + b"<script>")
    assert f"<p>{TEXTS['simplified']}</p>" in decode_page(data)[0]


def test_characters_of_hong_kong_are_read() -> None:
    text = TEXTS["traditional"] * 5 + "佢嚟開閘。"
    assert f"<p>{text}</p>" in decode_page(page(text, "big5hkscs", "big5"))[0]


@pytest.mark.parametrize(
    ("label", "charset"), [("windows-874", "cp874"), ("x-sjis", "cp932"), ("x-gbk", "gbk"), ("TIS-620", "cp874"), ("x-euc-jp", "euc_jp")]
)
def test_labels_are_understood_as_pages_write_them(label: str, charset: str) -> None:
    text = "ยามเช้าฤดูใบไม้ผลิ" if charset == "cp874" else "水门"[: 1 + (charset == "gbk")]
    assert decode_page(f"<html><p>{text}</p>".encode(charset), label)[0] == f"<html><p>{text}</p>"


@pytest.mark.timeout(60)
def test_comments_and_scripts_without_an_end_are_passed_over_once() -> None:
    assert decode_page(b"<!-- <script <style " * 100_000 + TEXTS["simplified"].encode("gbk"))[1] == "gb18030"
