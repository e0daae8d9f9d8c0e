"""The expressions in mappings and conditions of identity providers, as far as pipelines use them.

Google's are in CEL. Here they are a part of it: attributes (`assertion.sub`), texts, lists,
`==`, `!=`, `in`, `&&`, `||`, `!`, `+`, and the methods startsWith, endsWith and contains.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from localcloud.core.errors import ApiError

_PIECES = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(&&)|(\|\|)|(!(?!=))""")
_METHODS = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
}


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Args:
        expression: such as `assertion.repository == 'me/mine'`.
        names: what `assertion`, `google` and `attribute` are.

    Raises:
        ApiError: 400 where a claim is missing; 501 for what the local cloud does not understand.
    """
    try:
        tree = ast.parse(_PIECES.sub(_python, expression).strip(), mode="eval")
    except SyntaxError:
        raise _unknown(expression) from None
    return _value(tree.body, names, expression)


def _python(piece: re.Match[str]) -> str:
    text, and_, or_, _ = piece.groups()
    return str(text) if text else " and " if and_ else " or " if or_ else " not "


def _value(node: ast.expr, names: Mapping[str, Any], whole: str) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    if isinstance(node, ast.Attribute):
        return _member(_value(node.value, names, whole), node.attr)
    if isinstance(node, ast.Subscript):
        return _member(_value(node.value, names, whole), _value(node.slice, names, whole))
    if isinstance(node, ast.List):
        return [_value(item, names, whole) for item in node.elts]
    if isinstance(node, ast.BoolOp):
        values = (_value(item, names, whole) for item in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _value(node.operand, names, whole)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _value(node.left, names, whole) + _value(node.right, names, whole)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = (_value(side, names, whole) for side in (node.left, node.comparators[0]))
        if isinstance(node.ops[0], ast.Eq):
            return left == right
        if isinstance(node.ops[0], ast.NotEq):
            return left != right
        if isinstance(node.ops[0], ast.In):
            return left in right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 1:
        method = _METHODS.get(node.func.attr)
        if method:
            return method(_value(node.func.value, names, whole), _value(node.args[0], names, whole))
    raise _unknown(whole)


def _member(container: Any, name: str) -> Any:
    if not isinstance(container, Mapping) or name not in container:
        raise ApiError(400, f"The attribute {name} is not in the credential.")
    return container[name]


def _unknown(expression: str) -> ApiError:
    return ApiError(501, f"the local cloud does not understand the expression {expression!r}")
