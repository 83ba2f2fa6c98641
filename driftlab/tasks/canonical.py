"""When two arithmetic expressions are one answer: a text that they then share."""

from __future__ import annotations

import ast

from driftlab.tasks.arithmetic import evaluate

_Signed = list[tuple[int, str]]
"""Terms with their signs, or factors with exponent 1 or -1."""


def canonical(expression: str) -> str | None:
    """The canonical form of ``expression``; None where ``arithmetic.evaluate`` gives none.

    A sum is the collection of its signed terms and a product that of its factors and divisors, both sorted, with
    brackets only where they are needed; a sum within a product begins with a plus, its sign stands before the product.
    So spacing, the order of operands and redundant brackets do not count: ``a - (b - c)`` is ``a + c - b``,
    ``a / (b / c)`` is ``a * c / b``, ``a + b * (c - d)`` is ``a - b * (d - c)``. Nothing is computed or multiplied
    out: ``2 * 3`` is not ``6``, ``5 * 1`` is not ``5 / 1``. Two expressions that use each of some numbers once have one
    form exactly when they are the same function of those numbers.
    """
    if evaluate(expression) is None:
        return None
    return _sum_text(sorted(_terms(ast.parse(expression.strip(), mode="eval").body, 1), key=_by_text))


def _by_text(term: tuple[int, str]) -> tuple[str, int]:
    return term[1], -term[0]


def _terms(node: ast.expr, sign: int) -> _Signed:
    """Signed terms of ``sign`` times ``node``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        right = sign if isinstance(node.op, ast.Add) else -sign
        return [*_terms(node.left, sign), *_terms(node.right, right)]
    if isinstance(node, ast.UnaryOp):
        return _terms(node.operand, -sign)
    own, factors = _factors(node, 1)
    over = sorted(text for power, text in factors if power == 1)
    under = sorted(text for power, text in factors if power == -1)
    return [(sign * own, " / ".join([" * ".join(over), *under]))]


def _factors(node: ast.expr, power: int) -> tuple[int, _Signed]:
    """Sign, and factors with their exponents, of ``node`` to the ``power`` 1 or -1."""
    if isinstance(node, ast.UnaryOp):
        sign, factors = _factors(node.operand, power)
        return -sign, factors
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        left, over = _factors(node.left, power)
        right, under = _factors(node.right, power if isinstance(node.op, ast.Mult) else -power)
        return left * right, over + under
    if isinstance(node, ast.BinOp):
        terms = sorted(_terms(node, 1), key=_by_text)
        sign = terms[0][0]
        return sign, [(power, f"({_sum_text([(sign * own, text) for own, text in terms])})")]
    assert isinstance(node, ast.Constant)
    return 1, [(power, str(node.value))]


def _sum_text(terms: _Signed) -> str:
    """``a + b - c``: the terms in the order given, those with a minus last."""
    ordered = [text for sign, text in terms if sign == 1], [text for sign, text in terms if sign == -1]
    return " - ".join([" + ".join(ordered[0]), *ordered[1]]).strip()
