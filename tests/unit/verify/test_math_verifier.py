"""The math verifier: its own cases, what is equal, what is not, where answers are found, bombs."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_cli.types import Status

pytest.importorskip("mpmath")
FOLDER = Path(__file__).resolve().parents[3] / "verifiers" / "math"
CASES = [json.loads(line) for line in (FOLDER / "cases.jsonl").read_text().splitlines()]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "math_verifier_under_test", FOLDER / "verifier.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


MATH = load()


def equal(reference: str, answer: str, **options: str) -> bool:
    verdict = MATH.verify(f"\\boxed{{{answer}}}", reference, **options)
    return bool(verdict.score == 1.0)


@pytest.mark.parametrize("case", CASES, ids=[c["id"] for c in CASES])
def test_own_cases(case: dict[str, object]) -> None:
    options = case.get("options", {})
    verdict = MATH.verify(case["text"], case["reference"], **options)
    assert (verdict.score == 1.0) is case["label"], verdict


EQUAL = r"""
0.\overline{6} ~ 2/3
0.1\dot6 ~ \frac{1}{6}
0.\dot14285\dot7 ~ 1/7
0.(3) ~ 1/3
60° ~ \frac{\pi}{3}
30\text{ degrees} ~ 30^\circ
1A_{16} ~ 26
(1011)_2 ~ 11
204_{\text{five}} ~ 204_5
\text{52}_8 ~ 42
三百零五 ~ 305
½ ~ 0.5
12 345 ~ 12345
1\,000\,000 ~ 10^6
$6 ~ \$6.00
\text{4:30 p.m.} ~ 4:30 PM
(B) ~ \text{B}
+\infty ~ ∞
x \in [1,3] ~ [1,3]
\{x\in\mathbb{R} : x \ne 2\} ~ (-\infty,2)\cup(2,\infty)
\mathbb{R}\setminus\{0\} ~ x\neq 0
2x+4 < 10 ~ x<3
x > 2 and x < 5 ~ (2,5)
a \le -2 \text{ or } a = 1 ~ (-\infty,-2]\cup\{1\}
x^2+y^2=4 ~ 2x^2+2y^2=8
\log_2 8 ~ 3
\tan^{-1}(1) ~ \frac{\pi}{4}
10 \text{ km/h} ~ 10 \text{ kilometers per hour}
5 cm^2 ~ 5\text{ square centimeters}
5 m ~ 5\text{ meters}
5\text{ m} ~ 5
3.0\times 10^8 \text{ m/s} ~ 3\times10^8
3\,\mathrm{m/s} ~ 3 m/s
\langle 1,2,3\rangle ~ (1,2,3)
e^{i\pi} ~ -1
\sqrt[3]{-8} ~ -2
x^{2/3} ~ \sqrt[3]{x}^2
\frac{\pi}{4} + k\pi ~ \frac{\pi}{4}+n\pi
2^10 ~ 1024
2**(1/2) ~ \sqrt2
12^{\text{th}} ~ 12
\text{only }x=0 ~ 0
m\angle ABC = 40^\circ ~ 40
\sum_{k=1}^{4} k ~ 10
\emptyset ~ \{\}
[ 5 ] ~ 5
\frac{2}{3} \approx 0.667 ~ 2/3
9^{9^9} ~ 9^{9^9}
\$1.5 million ~ 1500000
\text{(A) and (C)} ~ C, A
\text{all real numbers} ~ (-\infty,\infty)
n \equiv 3 \pmod 5 ~ n\equiv 3\pmod{5}
x\ge 2\text{ and }x\ne 3 ~ [2,3)\cup(3,\infty)
"""
DIFFERENT = r"""
1.5 \text{ million} ~ 1.5
x\ge 2\text{ and }x\ne 3 ~ [2,\infty)
[1,2]\cup[3,4] ~ [1,4]
10^{100}+1 ~ 10^{100}
\sqrt2+10^{-60} ~ \sqrt2
2^{2000} ~ 2^{2000}+1
5\text{ hours} ~ 5\text{ minutes}
\$5 ~ 5\text{ cents}
11_2 ~ 11
52_8 ~ 528
25\% ~ 0.25
(1,2) ~ [1,2]
(1,2) ~ \{1,2\}
x<3 ~ y<3
x<3 ~ x>3
1, 2, \ldots, n ~ 1, 3, 5, \ldots, 2n-1
12:00 ~ 1:00
4:30 ~ 2:15
0.5 ~ 0.51
0.250 ~ 0.251
n=3k ~ 3
\ln x ~ \log x
f(x)=x ~ g(x)=x
\frac{\pi}{4}+k\pi ~ \frac{\pi}{4}+2k\pi
\bar z ~ z
\infty ~ -\infty
5! ~ 5
3\times 10^{-5} ~ 3\times 10^{-6}
(1,2),(3,4) ~ (1,2)
no ~ on
"""


@pytest.mark.parametrize("pair", EQUAL.strip().splitlines())
def test_equal_both_ways(pair: str) -> None:
    left, right = pair.split(" ~ ")
    assert equal(left, right)
    assert equal(right, left)


@pytest.mark.parametrize("pair", DIFFERENT.strip().splitlines())
def test_different_both_ways(pair: str) -> None:
    left, right = pair.split(" ~ ")
    assert not equal(left, right)
    assert not equal(right, left)


@pytest.mark.parametrize("percent", MATH.OPTIONS["percent"])
def test_percent_is_transitive(percent: str) -> None:
    forms = (r"10\%", "0.1", "10")
    same = {(a, b) for a in forms for b in forms if equal(a, b, percent=percent)}
    for a, b in same:
        for c in forms:
            assert (b, c) not in same or (a, c) in same


STATED = [
    ("\\boxed{16 \\text{ is wrong}}", "16", 0.0, Status.OK),
    ("$x \\boxed{= 16}$", "16", 1.0, Status.OK),
    ("\\boxed{\\approx 3.14}", "3.14", 1.0, Status.OK),
    ("The final answer is 3. \\boxed{4}", "4", 0.0, Status.UNPARSED),
    ("\\boxed{1/2} which is \\boxed{0.5}", "\\frac12", 1.0, Status.OK),
    ("\\boxed{4} and \\boxed{3}", "3,4", 1.0, Status.OK),
    ("\\boxed{4} and \\boxed{3}", "3", 0.0, Status.UNPARSED),
    ("The answer isn't \\boxed{16}", "16", 0.0, Status.UNPARSED),
    ("\\boxed{16} is wrong.", "16", 0.0, Status.UNPARSED),
    ("put it in \\boxed{}. So \\boxed{16}", "16", 1.0, Status.OK),
    ("<think>\\boxed{5}</think>", "5", 0.0, Status.UNPARSED),
    ("thoughts</think>\\boxed{5}", "5", 1.0, Status.OK),
    ("<answer>5</answer><answer>6</answer>", "5", 0.0, Status.UNPARSED),
    ("Final Answer: The final answer is $42$. I hope it is correct.", "42", 1.0, Status.OK),
    ("The answer is definitely not 42.", "42", 0.0, Status.OK),
    ("The answer is 7 because 3+4=7.", "7", 1.0, Status.OK),
    ("Final Answer: The largest $n$ is 34.", "34", 1.0, Status.OK),
    ("The answer is $25$%.", "25\\%", 1.0, Status.OK),
    ("The answer is $5$ cm.", "5\\text{ m}", 0.0, Status.OK),
    ("We find that $x < 3$.", "x<3", 1.0, Status.OK),
    ("It could be $4$ or $5$.", "5", 0.0, Status.UNPARSED),
    ("So $a=2$ and $b=3$. Thus $a+b$ is $5$.", "5", 0.0, Status.UNPARSED),
    ("Compute 3+4 for Bob", "7", 0.0, Status.UNPARSED),
    ("\x08oxed{\x0crac{1}{2}}", "1/2", 1.0, Status.OK),
    ("", "16", 0.0, Status.UNPARSED),
]


@pytest.mark.parametrize(("text", "reference", "score", "status"), STATED)
def test_where_the_answer_is_found(text: str, reference: str, score: float, status: Status) -> None:
    verdict = MATH.verify(text, reference)
    assert (verdict.score, verdict.status) == (score, status), verdict


@pytest.mark.parametrize(
    "reference", ["", "$$", "  ", "\\boxed{1}" * 300, "(" * 500 + "1" + ")" * 500]
)
def test_an_unusable_reference_is_an_error(reference: str) -> None:
    with pytest.raises(ValueError, match="reference"):
        MATH.verify("\\boxed{1}", reference)


def test_an_unknown_option_value_is_an_error() -> None:
    with pytest.raises(ValueError, match="percent is 'maybe'"):
        MATH.verify("\\boxed{1}", "1", percent="maybe")


BOMBS = {
    "tower": "9^{9^{9}}",
    "factorial": "(10^7)!",
    "factorials": "5" + "!" * 100,
    "binomial": "\\binom{10^8}{10^7}",
    "brackets": "(" * 2000 + "1" + ")" * 2000,
    "shallow brackets": "(" * 200 + "1" + ")" * 200,
    "braces": "\\frac{" * 200 + "1" + "}{2}" * 200,
    "digits": "9" * 100_000,
    "sum": "1+" * 500 + "1",
    "exponents": "2^" * 300 + "2",
    "work": "*".join(["2^{100000}/3^{70000}"] * 20),
    "sine": "\\sin(10^{10^{10}})",
    "exponentials": "e^{e^{e^{e^{e}}}}",
    "polynomial": "((x+1)^{1000}+1)^{1000}",
    "integral": "\\int_0^{10^9} x^{10^9} dx",
    "long sum": "\\sum_{k=1}^{10^8} k!",
    "set": "\\{" + ",".join(str(i) for i in range(400)) + "\\}",
    "plus-minus": "1" + "".join(f"\\pm{i}" for i in range(20)),
    "ten megabytes": "x" * 10_000_000,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("reference", ["16", "\\sqrt{2}", "\\{1,2\\}"])
def test_bombs_are_refused_quickly(name: str, reference: str) -> None:
    begun = time.perf_counter()
    verdict = MATH.verify(f"\\boxed{{{BOMBS[name]}}}", reference)
    assert verdict.score == 0.0
    assert time.perf_counter() - begun < 2.0


LOOPS = ["answer is ", "$", "\\(", "<answer>", "\\boxed{", "\\boxed{5} ", " ", "not ", "#### 5\n"]


@pytest.mark.parametrize("loop", LOOPS)
def test_long_loops_are_read_in_linear_time(loop: str) -> None:
    begun = time.perf_counter()
    MATH.verify(loop * (900_000 // len(loop)), "16")
    assert time.perf_counter() - begun < 2.0


NUMBERS = st.integers(-(10**12), 10**12)


@given(NUMBERS, st.integers(1, 5))
def test_a_neighbour_is_never_equal(n: int, step: int) -> None:
    assert not equal(str(n), str(n + step))
    assert not equal(f"\\frac{{{n}}}{{7}}", f"\\frac{{{n + step}}}{{7}}")
    assert not equal(f"{n}\\sqrt{{3}}", f"{n + step}\\sqrt{{3}}")


@given(NUMBERS, st.integers(2, 999), st.integers(2, 9))
@settings(max_examples=60)
def test_the_forms_of_a_fraction_are_equal(top: int, bottom: int, factor: int) -> None:
    value = Fraction(top, bottom)
    gold = f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    whole, part = divmod(abs(value), 1)
    forms = [
        f"{top}/{bottom}",
        f"\\dfrac{{{top * factor}}}{{{bottom * factor}}}",
        f"{gold}\\text{{ }}",
    ]
    if part and whole:
        sign = "-" if value < 0 else ""
        forms.append(f"{sign}{whole}\\frac{{{part.numerator}}}{{{part.denominator}}}")
    for form in forms:
        assert equal(gold, form), form
        assert equal(form, gold), form


@given(NUMBERS)
def test_the_forms_of_an_integer_are_equal(n: int) -> None:
    grouped = f"{n:,}"
    forms = [f"{n}.0", f"${n}$", f"\\text{{{n}}}", f"{n}.", grouped, grouped.replace(",", "{,}")]
    for form in forms:
        assert equal(str(n), form), form
    assert MATH.verify(MATH.answer(str(n)), str(n)).score == 1.0


@given(st.text(max_size=40))
@settings(max_examples=150)
def test_any_text_gets_a_verdict_and_equals_itself(text: str) -> None:
    verdict = MATH.verify(text, "16")
    assert verdict.status in (Status.OK, Status.UNPARSED)


PIECES = r"""
1 2 0.5 x \frac { } ( ) [ \{ \} | ^ _ ! - / \pi \sqrt \sin \log i = < \in \cup \pm , % \binom
\text{cm} ^\circ \infty $ 1/2 x^2 (1,2) [0,1) x<3
"""
FRAGMENTS = st.sampled_from(PIECES.split())


@given(st.lists(FRAGMENTS, max_size=8), st.lists(FRAGMENTS, max_size=8))
@settings(max_examples=150, deadline=None)
def test_equality_is_symmetric(left: list[str], right: list[str]) -> None:
    one, two = "".join(left), "".join(right)
    policy = MATH.equality.Policy(rounding="strict")
    try:
        there = MATH._same(one, two, policy)
        back = MATH._same(two, one, policy)
    except MATH.notation.TooBig:
        return
    assert there == back


def test_threads_give_the_same_verdicts() -> None:
    pairs = [line.split(" ~ ") for line in (EQUAL + DIFFERENT).strip().splitlines() if line]
    alone = [equal(a, b) for a, b in pairs]
    seen: dict[int, list[bool]] = {}

    def work(index: int) -> None:
        seen[index] = [equal(a, b) for a, b in pairs]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(seen.values()) == [alone] * 4


def test_plain_answers_need_no_heavy_import() -> None:
    import subprocess

    code = (
        "import sys, importlib.util as u\n"
        f"s = u.spec_from_file_location('v', {str(FOLDER / 'verifier.py')!r})\n"
        "m = u.module_from_spec(s); sys.modules['v'] = m; s.loader.exec_module(m)\n"
        "pairs = [('16', '16'), ('0.5', '1/2'), ('x=5', '5'), ('Ann', 'ann'), ('1,2', '2,1')]\n"
        "for a, b in pairs:\n"
        "    assert m.verify('\\\\boxed{' + a + '}', b).score == 1.0, a\n"
        "print([n for n in ('sympy', 'mpmath', 'math_verify') if n in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
