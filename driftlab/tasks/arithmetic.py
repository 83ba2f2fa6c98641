"""Evaluate an arithmetic expression exactly, and nothing else: Countdown's answers are checked here."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

_OPERATORS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
}
# Model output is untrusted: only these characters ever reach the parser, and no long string does.
_ALLOWED = re.compile(r"[0-9+\-*/() ]{1,200}")


def evaluate(expression: str) -> tuple[Fraction, tuple[int, ...]] | None:
    """Value of ``expression`` and the integers in it, in order; None when it is not plain arithmetic.

    Whole numbers, ``+ - * /``, unary minus and brackets only; arithmetic is exact (fractions).
    Division by zero and anything longer than 200 characters give None.
    """
    if not _ALLOWED.fullmatch(expression):
        return None
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        numbers: list[int] = []
        return _value(tree.body, numbers), tuple(numbers)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, numbers), _value(node.right, numbers)
        return _OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, numbers)
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    raise ValueError("not plain arithmetic")


def reaches(expression: str, numbers: Sequence[int], target: float) -> bool:
    """Whether ``expression`` uses exactly ``numbers`` (each once) and equals ``target``.

    ``target`` may be a decimal such as 27.4; it is compared exactly as its decimal text reads.
    """
    result = evaluate(expression)
    if result is None:
        return False
    value, used = result
    return Counter(used) == Counter(numbers) and value == Fraction(str(target))
