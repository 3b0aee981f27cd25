"""Definitions as two dictionaries have them: WordNet's data files, and GCIDE as Debian formats it for dictd.

A definition here is what stands between a word and its next sense: without pronunciation, etymology, field, quotations,
examples, sources and references to other entries. What is nothing but a reference ("Same as {Weir}.") is none.
"""

import gzip
import re
from collections.abc import Iterator
from typing import NamedTuple


class Definition(NamedTuple):
    source: str  # where to find it again
    words: tuple[str, ...]  # all that it defines: synonyms of WordNet, spellings and other names of GCIDE
    text: str


# WordNet: offset, file, kind, count of words in hexadecimal, then each word and its number in a lexicographer's file.

_QUOTED = re.compile(r'[;:,]?\s*"[^"]*"?')
_ADJECTIVE_PLACE = re.compile(r"\((?:a|p|ip)\)$")


def read_wordnet(data: bytes) -> Iterator[Definition]:
    """The glosses of a data file, their examples cut off, each with all words of its synset."""
    for line in data.decode("utf-8").splitlines():
        if line.startswith(" "):  # the licence
            continue
        fields, _, gloss = line.partition(" | ")
        parts = fields.split(" ")
        lemmas = parts[4 : 4 + 2 * int(parts[3], 16) : 2]
        words = tuple(_ADJECTIVE_PLACE.sub("", lemma).replace("_", " ") for lemma in lemmas)
        yield Definition(f"wordnet:{parts[2]}{parts[0]}", words, _tidy(_QUOTED.sub("", gloss)))


# GCIDE: plain ASCII, wrapped at 64 columns. An entry begins in column 0 with its words and their pronunciation between
# backslashes; senses, collocations and notes begin on lines of their own, quotations are indented by six columns more.

_DIGITS = {sign: value for value, sign in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
_LETTER = re.compile(
    r"\[(?:[^\w\s\]]([A-Za-z]{1,2})|([A-Za-z]{1,2})\^|(ae|oe|AE|OE)|([A-Za-z])(?:mac|um|dd|sl|cir|grave))\]"
)
_BEGINS = re.compile(
    r"(?P<number>\d{1,2}\.(?=\s|$))|(?P<letter>\([a-z]\)\s)|(?P<name>\{)|(?P<aside>Note:|Syn:|Usage:|--)"
)
_QUOTATION = 9  # columns: no sense begins so far to the right, and every quotation does
_HEADWORD = re.compile(r"\s*,?\s*([^\\\[\](){},]+?)\s*\\[^\\]*\\")
_GRAMMAR = re.compile(
    r"(?:(?:prop|pr|n|a|adj|adv|v|t|i|p|vb|imp|pl|sing|prep|conj|pron|interj|compar|superl|fem|masc|prenom|obs|poss|def|indef"
    r"|art|E|L|G|pret)\.|&|or\b|etc\.|pl\b|n\b(?=\s*\[)|\{[^{}]*\})"
)
_NAMES = re.compile(r"\{([^{}]+)\}(?:\s*(?:,|,?\s+or|,?\s+and)\s+(?:the\s+)?(?=\{))?")
_OTHER_NAMES = re.compile(
    r"(?:\s*[;,(]?\s*--\s*|\s*[;,(\[]\s*|(?:^|(?<=\.))\s*)(?:\w+ly\s+|sometimes\s+|often\s+)?"
    r"(?:(?:also|Also)\s+(?:called|written|spelled|known as)|(?:called|Called|written|Written|spelled|Spelled)\s+also)"
    r"\b[^.;\[\]]*(?:\.\]|[.)\]])?"
)
_BRACKETED = re.compile(r"\[[^\[\]]*\]")
_EXAMPLE = re.compile(r"[;:,]\s*as,\s.*?(?=\.\s+[A-Z]|$)", re.DOTALL)
_SOURCE = re.compile(r"\s*--\s*(?=[A-Z0-9{]|(?:n|a|v|adv)\.\s).*$", re.DOTALL)
_REFERENCE = re.compile(
    r"(?:^|(?<=[.;,)])\s*|--\s*)\(?\b(?:[Ss]ee|[Cc]f\.|[Cc]ompare|[Ss]ame as|[Oo]pposed to|[Dd]istinguished from"
    r"|[Dd]ifferent from|[Cc]ontrasted with|imp\.|p\. p\."
    r"|[Aa]n? (?:obsolete|old|variant|corrupt)\w* (?:form|spelling)s? of)(?=[\s,])"
    r".*?(?:\.(?=\s+[A-Z]|$)|$)|\s*\([Ss]ee\b[^()]*\)",
    re.DOTALL,
)
_SENTENCE_END = re.compile(r"(?<=[a-z)]{3})(?<!esp)(?<!etc)(?<!ecif)(?<!viz)\.\s+(?=[A-Z])")
_MARKUP = re.compile(r'[\\\[\]"]|^\)')
_FIELD = re.compile(r"^(?:\s*(?:pl\.|Hence,|(?:Fig|Specif)\.:|[A-Z]\w+:|\([A-Z][^()]*\)|[,.;:]))+\s*")


def read_gcide(index: bytes, compressed: bytes) -> Iterator[Definition]:
    """The senses and the collocations of all entries, in the order of the file; the index says where entries are."""
    text = gzip.decompress(compressed).decode("latin-1")
    spans = set()
    for line in index.decode("latin-1").splitlines():
        key, start, length = line.split("\t")
        if not key.startswith("00-"):  # about the database itself
            spans.add((_number(start), _number(length)))
    for begin, size in sorted(spans):
        entry = _LETTER.sub(lambda code: next(filter(None, code.groups())), text[begin : begin + size])
        yield from _read_entry(f"gcide:{begin}", entry)


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = 64 * value + _DIGITS[digit]
    return value


def _read_entry(source: str, entry: str) -> Iterator[Definition]:
    heads: tuple[str, ...] = ()
    owner = heads  # the words of the entry, or of the collocation that (a), (b) belong to
    defined = False
    for kind, block in _blocks(entry):
        if kind == "head":
            names = _other_names(block)
            heads, block = _peel_head(block)
            owner = heads = (*heads, *names)
        elif kind == "name":
            owner, block = _peel_names(block)
        elif kind == "number":
            owner = heads
        elif kind == "more" and defined:
            continue  # a second paragraph of the sense before
        if owner and (sense := _clean(block)):
            defined = True
            yield Definition(source, (*owner, *_other_names(block)), sense)


def _blocks(entry: str) -> Iterator[tuple[str, str]]:
    """What an entry consists of, each in one line and with its kind; quotations and notes are left out."""
    kind, lines, blank = "head", list[str](), False
    for line in [*entry.splitlines(), "", "."]:  # the last block ends like all others
        text = line.strip()
        begins = _BEGINS.match(text) if line.startswith("   ") else None
        if begins and (blank or begins.lastgroup in ("number", "letter")):  # else it is the rest of a wrapped line
            begun, text = str(begins.lastgroup), text[max(begins.end("number"), begins.end("letter"), 0) :]
        elif text and blank:
            begun = "more" if kind != "aside" and len(line) - len(line.lstrip()) < _QUOTATION else "quotation"
        else:
            begun = ""
        if begun:
            if kind not in ("aside", "quotation"):
                yield kind, " ".join(lines)
            kind, lines = begun, []
        if text:
            lines.append(text)
        blank = not text


def _peel_head(block: str) -> tuple[tuple[str, ...], str]:
    """The words of an entry, and what is left of its first block behind grammar, etymology and field."""
    words = []
    while found := _HEADWORD.match(block):
        words.append(found[1])
        block = _without_group(block[found.end() :].lstrip())
    return tuple(words), _without_grammar(block)


def _without_grammar(text: str) -> str:
    while True:
        shorter = _without_group(text.lstrip(" ,;.:"))
        if grammar := _GRAMMAR.match(shorter):
            shorter = shorter[grammar.end() :]
        if shorter == text:
            return text
        text = shorter


def _without_group(text: str) -> str:
    """The text behind the (…) or […] that it begins with; nothing where that is never closed."""
    if text[:1] not in ("(", "["):
        return text
    opening, closing, depth = text[0], {"(": ")", "[": "]"}[text[0]], 0
    for at, sign in enumerate(text):
        depth += (sign == opening) - (sign == closing)
        if depth == 0:
            return text[at + 1 :]
    return ""


def _peel_names(block: str) -> tuple[tuple[str, ...], str]:
    """A collocation's names, and its definition: "{Dog cabbage}, or {Dog's cabbage} (Bot.), a succulent herb"."""
    names = list[str]()
    while found := _NAMES.match(block):
        if names and found[1][:1].islower():  # {To curse by bell}, {book}, {and candle}
            names[-1] += f", {found[1]}"
        else:
            names.append(found[1])
        block = block[found.end() :]
    return tuple(names), _without_grammar(block)


def _other_names(block: str) -> list[str]:
    """What a sense says its thing is "also called", or a word is "written also"."""
    return re.findall(r"\{([^{}]+)\}", " ".join(_OTHER_NAMES.findall(block)))


def _clean(block: str) -> str:
    """The first sentence of a sense alone; nothing where that is a heading, a reference, or markup not understood."""
    text = _OTHER_NAMES.sub(lambda clause: ". " if "." in clause[0] else " ", block)
    text = _BRACKETED.sub(" ", _BRACKETED.sub(" ", text))
    for pattern in (_SOURCE, _QUOTED, _EXAMPLE, _REFERENCE, _FIELD):
        text = pattern.sub("", text).strip()
    text = _tidy(_SENTENCE_END.split(text.translate({ord("{"): None, ord("}"): None}))[0])
    return "" if block.endswith(":") or _MARKUP.search(text) else text


def _tidy(text: str) -> str:
    text = " ".join(text.split())
    text = re.sub(r"\(\s*[,;.]?\s*\)|\([^()]*$|--", "", text)  # what cutting has left of parentheses
    return re.sub(r"\s+(?=[\s,;.:)])", "", text).strip(" ,;:.-")
