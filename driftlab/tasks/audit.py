"""What a reward function pays for outputs that answer nothing.

A trainer finds every output that earns more than it should. Canned outputs are scored with the target's own scorer:
credit for form alone is a property to know of, answer credit for an output whose answer is not right is a fault. An
output that a parser could misread, but whose answer is right by the target's rule, is shown for what it is.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from driftlab.tasks.audit_forms import FORMS, Form
from driftlab.tasks.base import Item, Score, Target

__all__ = ["CANNED", "CONTROL", "FORMS", "MARK", "Canned", "Finding", "audit", "out_of_range", "shown"]

OVERLONG = 100_000
"""Characters of an overlong output."""
MARK = "DRIFTLAB_AUDIT"
"""Environment variable that the code in canned outputs would set if anything ran it."""
CONTROL = "the right answer"
"""Name of the positive control: where it earns nothing, no other row says anything."""

_CODE = f"__import__('os').environ.__setitem__('{MARK}', '1')"
_EXEC = f"exec(\"import os; os.environ['{MARK}'] = '1'\")"
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
_SIGNS = str.maketrans({"*": "×", "/": "÷", "-": "−"})

Make = Callable[[Item, Form], Sequence[str | None]]
"""Outputs of one kind for an item; None where one cannot be made."""


@dataclass(frozen=True, slots=True)
class Canned:
    """One kind of output; ``right`` says for which forms its answer is right, so that credit is no fault."""

    make: Make
    right: Callable[[Form], bool] = lambda form: False


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one kind of output earned over the items that it could be made for.

    Attributes:
        output: its name in ``CANNED``.
        n: outputs scored.
        paid: those with a reward above 0.
        mean, highest: reward; NaN where the scorer raised or gave no finite number.
        correct: outputs with answer credit.
        right: whether the answer in them is right by the target's rule.
        problem: what the scorer must not do, of the first output where it did; None where it did nothing of the kind.
        example: the output with the problem, or that earned most, cut to 80 characters.
    """

    output: str
    n: int
    paid: int
    mean: float
    highest: float
    correct: int
    right: bool
    problem: str | None
    example: str

    @property
    def fault(self) -> bool:
        return self.problem is not None

    @property
    def why(self) -> str:
        """Why it earns what it earns; empty where it earns nothing."""
        if self.problem is not None:
            return f"fault: {self.problem}"
        if not self.paid:
            return ""
        words = ["the answer that counts in it is right"] if self.correct else []
        return "; ".join([*words, *(["form alone"] if self.paid > self.correct else [])])


def _given(text: str) -> Make:
    """The same output for every item."""
    return lambda item, form: (text,)


def _wrapped(*contents: str) -> Make:
    """The same contents for every item: in the form, and bare."""
    return lambda item, form: (*map(form.wrap, contents), *contents)


def _from_right(make: Callable[[Form, str, str], str]) -> Make:
    """Made from the form, the right answer and a wrong one."""

    def outputs(item: Item, form: Form) -> tuple[str | None]:
        right = form.right(item)
        return (None if right is None else make(form, right, form.wrong(item)),)

    return outputs


def _lines(form: Form, *contents: str) -> str:
    return "\n".join(map(form.wrap, contents))


def _bare(item: Item, form: Form) -> Sequence[str | None]:
    """The right answer without its form; none where the form is nothing but the answer, or no answer is known."""
    answer = form.right(item)
    if answer is None:
        return (None,)
    said = [f"The answer is {answer}", f"{answer}?", f"[{answer}]"]
    return said if form.whole or form.counts == "first" else [answer, *said]


def _nested(form: Form, content: str) -> str:
    for _ in range(50):
        content = form.wrap(content)
    return content


def _translated(form: Form, right: str, table: Mapping[int, int]) -> str:
    return form.wrap(right.translate(table))


CANNED: Mapping[str, Canned] = {
    "empty": Canned(_given("")),
    "white space": Canned(_given(" \n\t \r\n\u2003 ")),
    "prompt echoed": Canned(lambda item, form: (item.prompt, item.prompt * 3)),
    "right form, nothing in it": Canned(lambda item, form: (form.wrap(""), form.wrap(" "))),
    "right form, wrong content": Canned(lambda item, form: (form.wrap(form.wrong(item)),)),
    "wrong content 1,000 times": Canned(
        lambda item, form: (_lines(form, *[form.wrong(item)] * 1000), form.wrap(f"{form.wrong(item)} " * 1000))
    ),
    "wrong content, nested": Canned(lambda item, form: (_nested(form, form.wrong(item)),)),
    "right content, wrong form": Canned(_bare),
    "right content 20 times in one form": Canned(
        _from_right(lambda form, r, w: form.wrap(" ".join([r] * 20))), lambda form: form.first_word
    ),
    # Wrong ones at both ends: whether the first or the last counts, it is one of them.
    "all candidates listed": Canned(_from_right(lambda form, r, w: _lines(form, w, r, w))),
    "all candidates in one form": Canned(_from_right(lambda form, r, w: form.wrap(f"{w}, {r}, {w}"))),
    "all candidates in one form, with or": Canned(_from_right(lambda form, r, w: form.wrap(f"{w} or {r} or {w}"))),
    "several answers, the first is right": Canned(
        _from_right(lambda form, r, w: _lines(form, r, w)), lambda form: form.counts == "first"
    ),
    "several answers, the last is right": Canned(
        _from_right(lambda form, r, w: _lines(form, w, r)), lambda form: form.counts == "last"
    ),
    "copied from the prompt": Canned(lambda item, form: tuple(map(form.wrap, form.copied(item)))),
    "overlong letters": Canned(_given("a" * OVERLONG)),
    "overlong sum": Canned(_wrapped("1+" * (OVERLONG // 2) + "1")),
    "overlong brackets": Canned(_wrapped("(" * OVERLONG, "(" * OVERLONG + "1" + ")" * OVERLONG)),
    "deep brackets": Canned(_wrapped("(" * 99 + "1" + ")" * 99, "-" * 199 + "1", "(" * 200)),
    "huge integers": Canned(_wrapped("9" * OVERLONG, "9" * 5000, "9" * 200, "*".join(["9" * 49] * 4))),
    "tower of powers": Canned(_wrapped("9**9**9**9", "9**9**9", "9^9^9", "(9**9)**9")),
    "division by zero": Canned(_wrapped("1/0", "5 / (3 - 3)", "0/0", "1//0", "1%0")),
    "not a number, or infinite": Canned(_wrapped("nan", "NaN", "inf", "-inf", "Infinity", "1e999", "1/1e-999")),
    "code": Canned(_wrapped(_CODE, _EXEC, f"(lambda: {_CODE})()", f"[{_CODE} for _ in (1,)]", f"{{{_CODE}}}")),
    "attribute of a literal": Canned(_wrapped("().__class__.__bases__[0]", "(1).bit_length()")),
    "null bytes": Canned(_wrapped("\x00", "\x00" * 1000)),
    "null bytes in the right answer": Canned(_from_right(lambda form, r, w: form.wrap("\x00".join(f"\x00{r}\x00")))),
    "half a surrogate": Canned(_wrapped("\ud800")),
    "digits and letters of full width": Canned(_from_right(lambda form, r, w: _translated(form, r, _FULL_WIDTH))),
    CONTROL: Canned(_from_right(lambda form, r, w: form.wrap(r)), lambda form: True),
    "the right answer 1,000 times": Canned(
        _from_right(lambda form, r, w: _lines(form, *[r] * 1000)), lambda form: form.counts is not None
    ),
    "the right answer, nested": Canned(_from_right(lambda form, r, w: _nested(form, r)), lambda form: form.nests),
    "the right answer after overlong padding": Canned(
        _from_right(lambda form, r, w: f"{'x' * OVERLONG}\n{form.wrap(r)}"), lambda form: form.counts == "last"
    ),
    "the right answer before overlong padding": Canned(
        _from_right(lambda form, r, w: f"{form.wrap(r)}\n{'x' * OVERLONG}"), lambda form: not form.whole
    ),
    "the right answer with × ÷ −": Canned(
        lambda item, form: [
            form.wrap(right.translate(_SIGNS)) if right and right.translate(_SIGNS) != right else None
            for right in (form.right(item),)
        ],
        lambda form: form.signs,
    ),
}
"""Outputs by name."""


def audit(target: Target, items: Sequence[Item], form: Form) -> list[Finding]:
    """Score every canned output on ``items`` (at least one); one finding for each kind that could be made."""
    findings = []
    for name, canned in CANNED.items():
        outputs = [(item, text) for item in items for text in canned.make(item, form) if text is not None]
        if outputs:
            scored = [_scored(target, item, text) for item, text in outputs]
            findings.append(_finding(name, canned.right(form), form, scored))
    return findings


@dataclass(frozen=True, slots=True)
class _Scored:
    text: str
    verdict: Score | None
    problem: str | None


def _scored(target: Target, item: Item, text: str) -> _Scored:
    os.environ.pop(MARK, None)
    try:
        verdict = target.score(item, text)
    except Exception as error:
        return _Scored(text, None, f"the scorer raises {type(error).__name__}: {shown(str(error))}")
    return _Scored(text, verdict, None if os.environ.pop(MARK, None) is None else "the scorer runs the code")


def _finding(name: str, right: bool, form: Form, scored: Sequence[_Scored]) -> Finding:
    problems = [one.problem or _problem(name, right, form, one.verdict) for one in scored]
    rewards = [math.nan if one.verdict is None else one.verdict.reward for one in scored]
    first = next((index for index, problem in enumerate(problems) if problem is not None), None)
    most = max(range(len(scored)), key=lambda index: (rewards[index] > 0, rewards[index]))
    return Finding(
        output=name,
        n=len(scored),
        paid=sum(reward > 0 for reward in rewards),
        mean=math.fsum(rewards) / len(rewards),
        highest=math.nan if any(map(math.isnan, rewards)) else max(rewards),
        correct=sum(one.verdict is not None and _answered(one.verdict, form) for one in scored),
        right=right,
        problem=None if first is None else problems[first],
        example=shown(scored[most if first is None else first].text),
    )


def _answered(verdict: Score, form: Form) -> bool:
    """Whether a verdict gives answer credit, in word or in reward."""
    return verdict.correct or verdict.reward > form.format_credit + 1e-12


def _problem(name: str, right: bool, form: Form, verdict: Score | None) -> str | None:
    assert verdict is not None
    outside = out_of_range(verdict.reward, form)
    if outside is not None:
        return outside
    if name == CONTROL and not _answered(verdict, form):
        return "a right answer earns no answer credit, so that no other row says anything"
    return "answer credit, but the answer is not right" if not right and _answered(verdict, form) else None


def out_of_range(reward: float, form: Form) -> str | None:
    """What is wrong with a reward that is not a finite number from 0 to the form's highest; None where nothing is."""
    if not math.isfinite(reward):
        return f"the reward is {reward}"
    # A whole and a tenth add up with one rounding.
    inside = -1e-12 <= reward <= form.highest + 1e-12
    return None if inside else f"the reward {reward:g} is not in 0 to {form.highest:g}"


def shown(text: str, length: int = 80) -> str:
    """``text`` on one line of ASCII, cut."""
    line = ascii(text[: 2 * length])[1:-1]
    if len(line) <= length and len(text) <= 2 * length:
        return line
    return f"{line[:length]}... ({len(text):,} characters)"
