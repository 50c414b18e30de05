r"""One notation for one thing: clean an answer's text and cut it into tokens.

Unicode symbols, full-width digits, sizes, spaces, delimiters, thousands separators, text commands,
unit words and number words are dealt with here, so that the grammar sees one form of each.
"""

# Look-alike characters are what this module is about.
# ruff: noqa: RUF001

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

MAX_CHARS = 2000
MAX_TOKENS = 400
MAX_DIGITS = 3000


class TooBig(ValueError):
    """The answer is too long, too deep or too large to be worth reading."""


class NotMaths(Exception):
    """The text does not follow the grammar."""


class Token(NamedTuple):
    """`kind` is num, name, cmd, text, op or sep; `space`: whitespace stood before it."""

    kind: str
    text: str
    space: bool = False


_UNICODE = {
    "−": "-", "–": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ",
    "÷": r"\div ", "≤": r"\le ", "⩽": r"\le ", "≦": r"\le ", "≥": r"\ge ", "⩾": r"\ge ",
    "≧": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ",
    "∅": r"\emptyset ",
    "π": r"\pi ", "√": r"\sqrt ", "∈": r"\in ", "°": r"^\circ ", "º": r"^\circ ",
    "±": r"\pm ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "θ": r"\theta ", "α": r"\alpha ",
    "β": r"\beta ", "γ": r"\gamma ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ",
    "⟨": "(", "⟩": ")", "（": "(", "）": ")", "，": ",", "；": ";", "：": ":", "。": ".", "、": ",",
    "′": "'", "’": "'", "…": r"\ldots ", "⋯": r"\ldots ", "\u2061": "", "\u200b": "", "\ufeff": "",
    "∖": r"\setminus ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ",
}  # fmt: skip
_SUPER = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿⁱ", "0123456789-+ni", strict=True))
_SUB = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SCRIPTS = [(re.compile(f"[{''.join(t)}]+"), mark, t) for mark, t in (("^", _SUPER), ("_", _SUB))]
# Control characters that Python makes of "\frac", "\text", "\begin" in a string that is not raw.
_BROKEN_ESCAPE = re.compile(
    "([\\x07\\x08\\t\\x0b\\x0c\\r])(?=(?:lpha|pprox|oxed|egin|inom|eta|ext|heta|imes|an|frac|riangle"
    "|ec|rac|ight|ho|angle)(?:[^a-z]|$))"
)
_ESCAPES = {"\x07": r"\a", "\x08": r"\b", "\t": r"\t", "\x0b": r"\v", "\x0c": r"\f", "\r": r"\r"}
_JOINED = re.compile(r"(?<=\d)(?:\{,\}\s*|,\\!\s*|\\,)(?=\d{3}(?!\d))")
_ORDINAL = re.compile(
    r"\^\s*\{?\s*\\(?:mathrm|text|textrm)\s*\{\s*(?:th|st|nd|rd)\s*\}\s*\}?"
    r"|(?<=\d)\s*\\(?:mathrm|text|textrm)\s*\{\s*(?:th|st|nd|rd)\s*\}|(?<=\d)(?:th|st|nd|rd)\b"
)
_SIZES = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\s*\.?")
_SPACES = re.compile(
    r"(?<!\\)\\(?:[,;: ]|quad|qquad|displaystyle|textstyle|nobreak|limits)|~|&nbsp;"
)
_SPEED = re.compile(r"(?<=\d)\s+((?:k?m|cm|ft|mi|g|kg)/(?:s|h|hr|min)(?:\^\{?2\}?)?)(?=[\s.]*$)")
_CIRCLED = re.compile(r"\s*[,、]?\s*([①-⑳])")
_DELIMITERS = re.compile(r"(?<!\\)(?:\\[()\[\]]|\$)")
_MONEY_START = re.compile(r"^[^$]*\$\s*[\d.]")


_OVER = re.compile(r"\{([^{}\\]+)\\over(?![a-zA-Z])([^{}\\]+)\}")  # TeX: {3\over 4}
_OVER_ALL = re.compile(r"^\s*([^{}\\]+)\\over(?![a-zA-Z])([^{}\\]+)$")


def clean(text: str) -> str:
    """One notation for one thing: unicode, spacing, sizes, delimiters, thousands, ordinals."""
    if len(text) > MAX_CHARS:
        raise TooBig(f"an answer of {len(text)} characters")
    text = _BROKEN_ESCAPE.sub(lambda m: _ESCAPES[m[1]], text)
    text = re.sub(r"\\{2,}(?=[a-zA-Z(\[)\]])", r"\\", text) if "begin{" not in text else text
    for pattern, mark, table in _SCRIPTS:
        text = pattern.sub(lambda m, k=mark, t=table: f"{k}{{{''.join(t[c] for c in m[0])}}}", text)
    if "\\" not in text:
        text = _CIRCLED.sub(lambda m: f", {ord(m[1]) - ord('①') + 1}", text).lstrip(", ")
    text = "".join(_ascii(c) for c in text)
    text = _JOINED.sub("", text).replace(r"\!", "")
    text = _ORDINAL.sub("", text)
    money = text.count("$") - text.count(r"\$")
    if money % 2 and _MONEY_START.match(text.replace(r"\$", "")):
        text = re.sub(r"(?<!\\)\$", r"\\$", text, count=1)
    text = _DELIMITERS.sub(" ", text)
    if r"\over" in text:
        text = _OVER.sub(r"\\frac{\1}{\2}", text)
        text = _OVER_ALL.sub(r"\\frac{\1}{\2}", text)
    text = _SIZES.sub(" ", text)
    text = _SPACES.sub(" ", text)
    text = text.strip().strip("*").strip()
    text = _SPEED.sub(r" \\text{\1}", text)
    return re.sub(r"(?:\s|(?<!\\)[.,;:])+$", "", text)


def _ascii(char: str) -> str:
    if char < "\x7f":
        return char
    if char in _UNICODE:
        return _UNICODE[char]
    if unicodedata.category(char) == "Nd":
        return str(unicodedata.decimal(char))
    if unicodedata.category(char) == "No" and (value := unicodedata.numeric(char)) < 1:
        ratio = Fraction(value).limit_denominator(10)
        return rf"\frac{{{ratio.numerator}}}{{{ratio.denominator}}}"
    if "\uff01" <= char <= "\uff5e":
        return chr(ord(char) - 0xFEE0)
    return " " if unicodedata.category(char) == "Zs" else char


def plain(text: str) -> str:
    """The text without markup, for comparing words: case, spaces, punctuation and wrappers go."""
    text = re.sub(r"\\(?:text\w*|mbox|mathrm|mathbf|mathit|mathsf|textbf|operatorname)\b", "", text)
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"(?<![a-z])([a-z])\.\s?([a-z])\.", r"\1\2", text, flags=re.IGNORECASE)
    text = re.sub(r"[{}$*`\"']", "", text)
    text = re.sub(r"\s+", " ", text).strip(" .,;:!")
    if len(text) == 3 and text[0] + text[2] == "()":
        text = text[1]
    text = re.sub(r"^(?:the|a|an) (?=\w)", "", text, flags=re.IGNORECASE)
    return text.casefold() if len(text) > 1 else text


# --- words -----------------------------------------------------------------------------------

FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh",
    "cosh", "tanh", "ln", "log", "lg", "exp", "sqrt", "cbrt", "max", "min", "gcd", "lcm", "sgn",
    "det", "asin", "acos", "atan", "arsinh", "arcosh", "artanh", "abs", "floor", "ceil",
}  # fmt: skip
_SAME_FUNCTION = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
GREEK = {
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "iota",
    "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "phi", "varphi", "chi", "psi",
    "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega", "ell",
}  # fmt: skip
_UNIT_ALIASES = """
cm: centimeter centimeters centimetre centimetres | m: meter meters metre metres
mm: millimeter millimeters millimetre millimetres | km: kilometer kilometers kilometre kilometres
in: inch inches | ft: foot feet | yd: yard yards | mi: mile miles | s: sec secs second seconds
min: mins minute minutes | h: hr hrs hour hours | day: days | week: weeks | month: months
year: yr yrs years | g: gram grams | kg: kilogram kilograms | mg: milligram milligrams
lb: lbs pound pounds | oz: ounce ounces | l: liter liters litre litres L
ml: mL milliliter milliliters millilitre millilitres | gal: gallon gallons
$: dollar dollars usd | cent: cents | unit: units | deg: degree degrees | rad: radian radians
mph: | km/h: kph kmh | m/s: mps | n: newton newtons N | j: joule joules J | w: watt watts W
% : percent percentage pct
"""
UNITS = {
    alias: name.strip()
    for entry in re.split(r"[|\n]", _UNIT_ALIASES)
    if ":" in entry
    for name, aliases in [entry.split(":", 1)]
    for alias in [name.strip(), *aliases.split()]
}
_PLAIN_UNITS = {u for u in UNITS if len(u) > 1} - {"in"}
_WORDS_TO_TWELVE = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {word: number for number, word in enumerate(_WORDS_TO_TWELVE.split())}
_FILLER = {"only", "approximately", "about", "roughly", "exactly", "is", "and", "the answer is"}
QUALIFIER = re.compile(r"(?:for (?:all|any|every|each|some)|where|with)\b")
_SHORT_WORDS = {"yes", "no", "odd", "all", "any", "the", "not", "one", "two", "six", "ten", "is"}
_CN_DIGITS = {c: i for i, c in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_CN_SCALES = {"十": 10, "百": 100, "千": 1000}


def unit_name(words: str) -> str:
    """The canonical name of a unit or a counted thing: `square inches` is `in^2`."""
    words = re.sub(r"\s+", " ", words.replace(".", "")).strip(" ()")
    power = ""
    if match := re.match(r"(square|sq|cubic|cu)\s+(.+)$", words, re.IGNORECASE):
        power = "^2" if match[1][0].lower() == "s" else "^3"
        words = match[2]
    if match := re.search(r"\s*(?:\^\s*\{?|\s)([23])\}?$|\s+(squared|cubed)$", words):
        power = "^" + (match[1] or ("2" if match[2] == "squared" else "3"))
        words = words[: match.start()]
    name = UNITS.get(words) or UNITS.get(words.lower())
    if name is None and (match := re.fullmatch(r"(.+?)\s*(?:/|\bper\b)\s*(.+)", words)):
        return f"{unit_name(match[1])}/{unit_name(match[2])}{power}"
    return (name or words.lower()) + power


def chinese_number(text: str) -> int | None:
    """A whole number below 10^8 in Chinese numerals, or None."""
    if not text or any(c not in _CN_DIGITS and c not in _CN_SCALES and c != "万" for c in text):
        return None
    total = section = digit = 0
    for char in text:
        if char in _CN_DIGITS:
            digit = _CN_DIGITS[char]
        elif char == "万":
            total, section, digit = (total + section + digit) * 10000, 0, 0
        else:
            section, digit = section + (digit or 1) * _CN_SCALES[char], 0
    return total + section + digit


# --- tokens ----------------------------------------------------------------------------------

_GROUPED = r"\d{1,3}(?:,\d{3})+(?![\d])(?:\.\d+)?|\d{1,3}(?:\ \d{3})+(?![\d])(?:\.\d+)?"
_TOKEN = re.compile(
    rf"""(?P<space>\s*)(?:
    (?P<repeat>\d*\.\d*(?:\\(?:overline|bar|dot)\s*(?:\{{\d+\}}|\d)\d*(?:\\dot\s*(?:\{{\d\}}|\d))?
        |\(\d+\)))
    |(?P<science>(?:\d+\.?\d*|\.\d+)[eE][+-]?\d{{1,4}}(?![\d^.a-zA-Z]))
    |(?P<grouped>{_GROUPED})
    |(?P<number>\d+\.\d+|\.\d+|\d+\.(?![\d.])|\d+)
    |(?P<cmd>\\[a-zA-Z]+|\\[^a-zA-Z])
    |(?P<word>[A-Za-z]+)
    |(?P<op>\*\*|<=|>=|!=|==|:=|=<|[-+*/^_=<>|(){{}}\[\],;:!%'&.~?"@\#`])
    |(?P<other>[^\x00-\x7f]+)
    )""",
    re.VERBOSE,
)
_TEXT_COMMANDS = {
    r"\text", r"\textrm", r"\textnormal", r"\textbf", r"\textit", r"\textup", r"\textsf",
    r"\texttt", r"\mbox", r"\hbox", r"\mathrm", r"\operatorname", r"\mathsf", r"\rm",
}  # fmt: skip
_SAME_COMMAND = {
    r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\cfrac": r"\frac", r"\dbinom": r"\binom",
    r"\tbinom": r"\binom", r"\leq": "<=", r"\le": "<=", r"\leqslant": "<=", r"\leqq": "<=",
    r"\geq": ">=", r"\ge": ">=", r"\geqslant": ">=", r"\geqq": ">=", r"\lt": "<", r"\gt": ">",
    r"\ne": "!=", r"\neq": "!=", r"\approx": "≈", r"\simeq": "≈", r"\cdot": "*", r"\times": "*",
    r"\ast": "*", r"\div": "/", r"\colon": ":", r"\mid": "|", r"\vert": "|", r"\lvert": "|",
    r"\rvert": "|", r"\lbrack": "[", r"\rbrack": "]", r"\langle": "(", r"\rangle": ")",
    r"\lbrace": r"\{", r"\rbrace": r"\}", r"\lparen": "(", r"\rparen": ")", r"\degree": r"\circ",
    r"\varnothing": r"\emptyset", r"\cupdot": r"\cup", r"\backslash": r"\setminus",
    r"\iff": r"\Leftrightarrow", r"\colonequals": "=", r"\land": r"\wedge", r"\lor": r"\vee",
    r"\prime": "'", r"\ld": r"\ldots", r"\dots": r"\ldots", r"\cdots": r"\ldots",
}  # fmt: skip
_IGNORED = {
    r"\mathbf", r"\mathit", r"\mathcal", r"\boldsymbol", r"\bm", r"\bold", r"\rm", r"\bf", r"\ ",
    r"\mathopen", r"\mathclose", r"\boxed", r"\fbox", r"\hline", r"\vec", r"\overrightarrow",
    r"\triangle", r"\angle", r"\lim",
} - {r"\lim"}  # fmt: skip


def tokens(text: str) -> list[Token]:
    """The tokens of cleaned text. Raises NotMaths on a character that has no part in an answer."""
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            if text[at:].isspace():
                break
            raise NotMaths(text[at : at + 10])
        kind, body, space = match.lastgroup or "", match[match.lastgroup or 0], bool(match["space"])
        at = match.end()
        if len(body) > MAX_DIGITS or len(found) > MAX_TOKENS:
            raise TooBig("more digits or symbols than an answer has")
        if kind in ("repeat", "science", "number"):
            found.append(Token(kind, body, space))
        elif kind == "grouped":
            # A group inside brackets is a list: (312,123,231) has three members.
            depth = sum(t.text in ("(", "[", "{", r"\{") for t in found) - sum(
                t.text in (")", "]", "}", r"\}") for t in found
            )
            if depth and "," in body:
                at = match.start("grouped") + len(body.split(",")[0])
                body = body.split(",")[0]
            found.append(Token("number", re.sub(r"[, ]", "", body), space))
        elif kind == "cmd":
            body = _SAME_COMMAND.get(body, body)
            if body in _TEXT_COMMANDS:
                content, at = _braced(text, at)
                found.extend(_text_tokens(content, space, found))
            elif body == r"\$":
                found.append(Token("money", "$", space))
            elif body == r"\%":
                found.append(Token("op", "%", space))
            elif body == r"\#":
                raise NotMaths(body)
            elif body not in _IGNORED:
                found.append(Token("cmd" if body[0] == "\\" else "op", body, space))
        elif kind == "word":
            found.extend(_word_tokens(body, space, found))
        elif kind == "op":
            body = {"**": "^", "==": "=", "=<": "<=", ":=": "="}.get(body, body)
            found.append(Token("op", body, space))
        elif body in "€£¥":
            found.append(Token("money", body, space))
        else:
            found.append(Token("text", body, space))
    return found


def _braced(text: str, at: int) -> tuple[str, int]:
    """The content of the brace group at or after `at`, and where it ends."""
    while at < len(text) and text[at].isspace():
        at += 1
    if at >= len(text) or text[at] != "{":
        return text[at : at + 1], at + 1
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return text[at + 1 : end], end + 1
    return text[at + 1 :], len(text)


def _text_tokens(content: str, space: bool, before: list[Token]) -> list[Token]:
    """What `\\text{content}` stands for: a separator, a letter, a number, a function or words."""
    words = content.replace("\\", " ").strip()
    bare = words.strip(" ,.").lower()
    if not words or bare in _FILLER - {"and"}:
        return []
    if bare in ("and", "or"):
        return [Token("sep", bare, True)]
    if words in FUNCTIONS:
        return [Token("cmd", "\\" + _SAME_FUNCTION.get(words, words), space)]
    if len(words) == 1 and words in UNITS and before and before[-1].kind == "number":
        return [Token("text", words, space)]
    if _SHORT_TEXT.fullmatch(words):  # (C), 12, "A and C"
        return [Token(t.kind, t.text, space or t.space) for t in tokens(words)]
    first, _, rest = words.partition(" ")
    if first.lower() in _SCALES:
        return [*_scaled(first), *_text_tokens(rest, True, before)]
    return [Token("text", words, space)]


_SHORT_TEXT = re.compile(
    r"[\d\s.,+\-*/()]+"
    r"|(?:\(?(?:[A-Za-z]|\d+)\)?(?:,\s*(?:and\s+|or\s+)?|\s+(?:and|or)\s+|$))+"
)
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def _scaled(word: str) -> list[Token]:
    """`million` after a number multiplies it."""
    return [Token("op", "*"), Token("number", str(_SCALES[word.lower()]))]


def _word_tokens(word: str, space: bool, before: list[Token]) -> list[Token]:
    """Letters outside a text command: a function, a constant, a separator, a unit, a product."""
    lower = word.lower()
    if lower in ("and", "or"):
        return [Token("sep", lower, True)]
    if word in FUNCTIONS and not (word == "min" and before and before[-1].kind == "number"):
        return [Token("cmd", "\\" + _SAME_FUNCTION.get(word, word), space)]
    if lower in _SCALES and before and before[-1].kind == "number":
        return _scaled(lower)
    if lower in ("infinity", "infty", "inf"):
        return [Token("cmd", r"\infty", space)]
    if word in ("pi", "Pi") or word in GREEK:
        return [Token("cmd", "\\" + word.lower() if lower == "pi" else "\\" + word, space)]
    after_number = before and (before[-1].kind == "number" or before[-1].text in (")", "}"))
    if after_number and (word in _PLAIN_UNITS or lower in _PLAIN_UNITS):
        return [Token("text", word, space)]
    for name in ("sin", "cos", "tan", "ln", "log"):
        if word.startswith(name) and len(word) == len(name) + 1:
            return [Token("cmd", "\\" + name, space), Token("name", word[-1], True)]
    if len(word) <= 3 and (word.isupper() or lower not in _SHORT_WORDS):
        return [Token("name", c, space if i == 0 else False) for i, c in enumerate(word)]
    return [Token("text", word, space)]
