"""The expressions of IAM conditions and identity providers, as far as pipelines use them.

Google's are in CEL. Here they are a part of it: attributes (`assertion.sub`), texts, lists,
`==`, `!=`, `in`, `&&`, `||`, `!`, `+`, and the methods startsWith, endsWith, contains, hasOnly and
`api.getAttribute`, and the macro `has`. What is not known is refused when it is written, never
taken for true or false.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from localcloud.core.errors import ApiError, invalid

MODIFIED_GRANTS = "iam.googleapis.com/modifiedGrantsByRole"
"""The attribute of a call that sets a policy: the roles in whose bindings something changes.

Source: "Set limits on granting roles",
docs.cloud.google.com/iam/docs/setting-limits-on-granting-roles.
"""
# By the beginning of their permissions, the services of the local cloud that tell it, of those in
# "IAM API attributes", docs.cloud.google.com/iam/docs/conditions-attribute-reference (2026-11-24).
_TELL_GRANTS = ("cloudkms", "compute", "iam", "resourcemanager", "secretmanager", "storage")
_MOST_ROLES, _MOST_OPERATORS = 10, 12
# CEL's operators that Python spells otherwise; texts are matched first, so that theirs stay.
_PIECES = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(&&)|(\|\|)|(!(?!=))""")
_METHODS: Mapping[str, Callable[..., Any]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
    "hasOnly": lambda values, allowed: set(values) <= set(allowed),
    "getAttribute": lambda attributes, name, default: attributes.get(name, default),
}
_ARGUMENTS = {"getAttribute": 2}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda left, right: left == right,
    ast.NotEq: lambda left, right: left != right,
    ast.In: lambda left, right: left in right,
}
_LITERALS = {"true": True, "false": False}


def resource(accessed: str) -> dict[str, Any]:
    """Return the attributes of the resource that is accessed; only those of storage have any.

    The names are those of "Resource attributes for IAM Conditions",
    cloud.google.com/iam/docs/conditions-resource-attributes. A list of objects is an access to the
    bucket. A project has other names than what is in a bucket, which nothing here asks for.
    """
    if not accessed.startswith("buckets/"):
        return {"resource": dict.fromkeys(("name", "type", "service"), "")}
    kind = "Object" if "/objects/" in accessed else "Bucket"
    service = "storage.googleapis.com"
    attributes = {"name": f"projects/_/{accessed}", "type": f"{service}/{kind}", "service": service}
    return {"resource": attributes}


def check(expression: str, names: Collection[str]) -> None:
    """Refuse an expression that `evaluate` does not understand given these names; 501."""
    tree = _parsed(expression)
    macros = [node.func for node in _walk(tree) if isinstance(node, ast.Call) and _is_has(node)]
    used = {each.id for each in _walk(tree) if isinstance(each, ast.Name) and each not in macros}
    if not used <= {*names, *_LITERALS}:
        raise _unknown(expression)


def check_binding(expression: str, names: Collection[str]) -> None:
    """Refuse a condition that can't stand in a policy, also for its size.

    The limits and the words are those of Google's linter, which calls each an error: "Linting
    policies", docs.cloud.google.com/iam/docs/linting-policies (2026-04-02).

    Raises:
        ApiError: 400, or 501 as in `check`.
    """
    check(expression, names)
    operators = 0
    for node in _walk(_parsed(expression)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            _check_call(node.func.attr, node.args)
        operators += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        operators += isinstance(node, ast.UnaryOp)
    if operators > _MOST_OPERATORS:
        raise invalid(f"Logical operators count must not be more than {_MOST_OPERATORS}")


def _check_call(method: str, arguments: list[ast.expr]) -> None:
    first, *default = map(ast.unparse, arguments)
    if method == "hasOnly" and len(getattr(arguments[0], "elts", ())) > _MOST_ROLES:
        raise invalid(
            f"The list argument to hasOnly() cannot have more than {_MOST_ROLES} elements"
        )
    if method == "getAttribute" and MODIFIED_GRANTS in first and default != ["[]"]:
        raise invalid(
            f"api.getAttribute call on {first} can only accept empty list ('[]') as default value."
        )


def is_unheard(expression: str, permission: str) -> bool:
    """Return whether a grant depends on an attribute that the service does not provide.

    Google refuses such a call, whatever roles it changes.
    """
    tells = permission.split(".")[0] in _TELL_GRANTS
    return permission.endswith(".setIamPolicy") and not tells and MODIFIED_GRANTS in expression


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression.

    Args:
        expression: such as `assertion.repository == 'me/mine'`.
        names: what `assertion`, `google`, `attribute` or `api` are.

    Raises:
        ApiError: 400 where a claim is missing; 501 for what the local cloud does not understand.
    """
    check(expression, names)
    return _value(_parsed(expression), names)


# Kept by text: a policy's conditions are evaluated at every call that it is asked about.
@lru_cache(maxsize=256)
def _parsed(expression: str) -> ast.expr:
    try:
        tree = ast.parse(_PIECES.sub(_python, expression).strip(), mode="eval").body
    except SyntaxError:
        raise _unknown(expression) from None
    if not all(map(_known, _walk(tree))):
        raise _unknown(expression)
    return tree


def _python(piece: re.Match[str]) -> str:
    text, and_, or_, _ = piece.groups()
    return str(text) if text else " and " if and_ else " or " if or_ else " not "


def _walk(tree: ast.expr) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


# What this does not know never gets to `_value`, which has a case for all that it knows.
def _known(node: ast.expr) -> bool:
    if _is_has(node):
        return True
    if isinstance(node, ast.Call):
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        wanted = _ARGUMENTS.get(method, 1)
        return method in _METHODS and len(node.args) == wanted and not node.keywords
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _COMPARED
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | int | float)
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.BoolOp)


def _is_has(node: ast.expr) -> bool:
    """Return whether a node is the macro `has(attributes.name)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    one = len(node.args) == 1 and not node.keywords and isinstance(node.args[0], ast.Attribute)
    return one and node.func.id == "has"


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id] if node.id in names else _LITERALS[node.id]
    if isinstance(node, ast.Attribute):
        return _member(_value(node.value, names), node.attr)
    if isinstance(node, ast.Subscript):
        return _member(_value(node.value, names), _value(node.slice, names))
    if isinstance(node, ast.List):
        return [_value(item, names) for item in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        assert isinstance(node.args[0], ast.Attribute)
        return node.args[0].attr in _value(node.args[0].value, names)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Attribute)
        values = [_value(each, names) for each in (node.func.value, *node.args)]
        return _METHODS[node.func.attr](*values)
    return _operation(node, names)


def _operation(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        values = (_value(item, names) for item in node.values)
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp):
        return not _value(node.operand, names)
    if isinstance(node, ast.BinOp):
        return _value(node.left, names) + _value(node.right, names)
    assert isinstance(node, ast.Compare)
    left, right = (_value(side, names) for side in (node.left, node.comparators[0]))
    return _COMPARED[type(node.ops[0])](left, right)


def _member(container: Any, name: str) -> Any:
    if not isinstance(container, Mapping) or name not in container:
        raise ApiError(400, f"The attribute {name} is not in the credential.")
    return container[name]


def _unknown(expression: str) -> ApiError:
    return ApiError(501, f"the local cloud does not understand the expression {expression!r}")
