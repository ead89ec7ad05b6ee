"""The subset of Python for written rewards, and its compiler.

A reward is one function of expressions over batched tensors. Imports, loops, conditions, calls of own functions,
unlisted attributes and in-place changes are forbidden. Therefore a reward terminates and accesses only its arguments.
"""

import ast
import math
from collections.abc import Callable, Collection, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor

from robot_rl.util.errors import UserError, nearest

Function = Callable[[Mapping[str, Tensor], Mapping[str, Tensor], Tensor], Tensor]
"""Reward function of n transitions: reward(now, before, action) -> rewards (n,)."""
ARGUMENTS = ("now", "before", "action")
LONGEST, MOST_NODES = 20_000, 2_000
"""Largest number of characters, and of syntax nodes, in the source of a reward."""
_SHARED = frozenset({
    "abs", "acos", "amax", "amin", "asin", "atan", "atan2", "ceil", "clamp", "clip", "cos", "cosh", "deg2rad", "exp",
    "expm1", "floor", "fmod", "hypot", "isfinite", "log", "log1p", "log2", "logical_and", "logical_not", "logical_or",
    "maximum", "mean", "minimum", "norm", "pow", "prod", "relu", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "sqrt", "square", "squeeze", "sum", "tan", "tanh", "unsqueeze",
})  # fmt: skip
FUNCTIONS = _SHARED | {"cat", "cross", "exp2", "ones_like", "stack", "where", "zeros_like"}
"""Allowed functions torch.<name>."""
METHODS = _SHARED | {"all", "any", "float", "long"}
"""Allowed methods of a tensor."""
_KEYWORDS = {"dim", "axis", "keepdim", "min", "max", "p", "ord", "other", "exponent"}
_PLAIN = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Assign, ast.Name, ast.Load,
    ast.Store, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword, ast.Attribute, ast.Subscript,
    ast.Slice, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Mod, ast.MatMult, ast.USub,
    ast.UAdd, ast.Invert, ast.BitAnd, ast.BitOr, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq,
)  # fmt: skip
_INSTEAD = {
    **dict.fromkeys(("Import", "ImportFrom"), "torch is there; remove the import"),
    **dict.fromkeys(("If", "IfExp"), "use torch.where(condition, a, b), since each row has its own condition"),
    **dict.fromkeys(("For", "While"), "write it without a loop, for all rows at once"),
    "BoolOp": "use & and | on tensors of bool",
    "Not": "use ~ on a tensor of bool",
    **dict.fromkeys(("List", "Tuple"), "lists and tuples may only be arguments and indices"),
    "Lambda": "write the expression out",
    "ListComp": "write the parts out",
    "JoinedStr": "a reward has no text",
}


class BadCode(UserError):  # noqa: N818 - it reads as a sentence
    """Forbidden or failing reward code; the message explains the fault to the code's author."""


def compile_reward(source: str, views: Collection[str] | None = None) -> Function:
    """Check a source and return its function `reward`; `BadCode` for forbidden code. The function is not called.

    `views`: names of the views that the reward may read; None: any name.
    """
    tree = _parsed(source)
    _Check(views).visit(tree)
    # PyTorch imports some modules lazily with its caller's builtins; no allowed name of the source reaches them.
    scope: dict[str, Any] = {"__builtins__": {"__import__": __import__}}
    scope["torch"] = SimpleNamespace(**{name: getattr(torch, name) for name in FUNCTIONS})
    exec(compile(tree, "<reward>", "exec"), scope)
    function: Function = scope["reward"]
    return function


def names_read(source: str) -> list[str]:
    """Return the views that a valid source reads, in order of first use."""
    nodes = [n for n in ast.walk(_parsed(source)) if isinstance(n, ast.Subscript) and _is_view(n)]
    nodes.sort(key=lambda n: (n.lineno, n.col_offset))
    return list(dict.fromkeys(str(n.slice.value) for n in nodes if isinstance(n.slice, ast.Constant)))


def evaluate(function: Function, now: Mapping[str, Tensor], before: Mapping[str, Tensor], action: Tensor) -> Tensor:
    """Return the reward (n,) of n transitions; `BadCode` if the function fails or returns another type or shape."""
    try:
        reward = function(now, before, action)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        line = error.__traceback__.tb_next.tb_lineno if error.__traceback__ and error.__traceback__.tb_next else 0
        message = " ".join(str(error).split())[:300]
        raise BadCode(f"line {line} fails: {type(error).__name__}: {message}; correct it") from None
    if not isinstance(reward, Tensor) or tuple(reward.shape) != (len(action),):
        shape = tuple(reward.shape) if isinstance(reward, Tensor) else type(reward).__name__
        raise BadCode(f"it returns {shape} for n = {len(action)} environments; return a tensor of shape (n,)")
    return reward.to(torch.float32)


def _parsed(source: str) -> ast.Module:
    """Return the source's syntax tree, without annotations, and with `a += b` as `a = a + b`, which is not in place."""
    if len(source) > LONGEST:
        raise BadCode(f"it has {len(source)} characters; use {LONGEST} at most")
    try:
        tree = ast.parse(source)
        if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
            raise BadCode(f"it has more than {MOST_NODES} parts; write a shorter one")
        plain: ast.Module = ast.fix_missing_locations(_Plain().visit(tree))
    except SyntaxError as error:
        raise BadCode(f"line {error.lineno}: {error.msg}; return one Python function and nothing else") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadCode(f"it cannot be read ({error}); return one Python function and nothing else") from None
    return plain


class _Plain(ast.NodeTransformer):
    """Remove annotations and in-place assignments."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            each.annotation = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return node
        read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = ast.copy_location(ast.BinOp(read, node.op, node.value), node)
        return self.generic_visit(ast.copy_location(ast.Assign([node.target], value), node))


class _Check(ast.NodeVisitor):
    """Raise `BadCode` at the first forbidden syntax node."""

    def __init__(self, views: Collection[str] | None):
        self.views = views
        self.known = {"torch"}
        """Names that the code may read at the current node."""
        self.inside = False
        """Whether the current node is inside the function `reward`."""

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        raise BadCode(f"line {getattr(node, 'lineno', 1)}: {what}")

    def generic_visit(self, node: ast.AST) -> None:
        if not isinstance(node, _PLAIN):
            name = type(node).__name__
            self.refuse(node, f"{name} is not allowed; {_INSTEAD.get(name, 'use expressions over tensors only')}")
        super().generic_visit(node)

    def visit_Module(self, node: ast.Module) -> None:
        functions = [each for each in node.body if isinstance(each, ast.FunctionDef)]
        for each in node.body:
            if not isinstance(each, ast.FunctionDef | ast.Assign) and not _is_docstring(each):
                if not isinstance(each, _PLAIN):
                    self.generic_visit(each)  # its error names a replacement
                self.refuse(each, "only one function and constants may stand here")
        if [each.name for each in functions] != ["reward"]:
            self.refuse(node, f"define one function, reward({', '.join(ARGUMENTS)}), and no other")
        super().generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        a = node.args
        more = a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults or node.decorator_list
        plain = not more and not getattr(node, "type_params", ())
        if self.inside or not plain or tuple(each.arg for each in a.args) != ARGUMENTS:
            self.refuse(node, f"the function is reward({', '.join(ARGUMENTS)}), without defaults or decorators")
        if not isinstance(node.body[-1], ast.Return) or node.body[-1].value is None:
            self.refuse(node.body[-1], "the function ends with `return` and its value")
        self.inside, before, self.known = True, self.known, {*self.known, *ARGUMENTS}
        for each in node.body:
            self.visit(each)
        self.inside, self.known = False, before

    def visit_Assign(self, node: ast.Assign) -> None:
        if not self.inside and not _is_number(node.value):  # module-level code runs outside the sandbox
            self.refuse(node, "a constant is a number; compute with it inside the function")
        self.visit(node.value)
        for target in node.targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            for name in names:
                if not isinstance(name, ast.Name):
                    self.refuse(node, "assign to a name: tensors are not changed in place")
                if name.id.startswith("_") or name.id in ("torch", "reward", *ARGUMENTS):
                    self.refuse(node, f"{name.id!r} may not be assigned; choose another name")
                self.known.add(name.id)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not _is_docstring(node):
            self.generic_visit(node)
            self.refuse(node, "this expression does nothing; remove it")

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in ("now", "before"):
            self.refuse(node, f'{node.id} is read as {node.id}["view"] only')
        if node.id not in self.known or node.id == "torch":
            self.refuse(node, f"{node.id!r} is not there; {nearest(node.id, self.known)}")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id in ("now", "before"):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if not self.inside or not isinstance(key, str):
                self.refuse(node, f'{node.value.id} is read as {node.value.id}["view"] only')
            if self.views is not None and key not in self.views:
                self.refuse(node, f"there is no view {key!r}; {nearest(key, self.views)}")
            return
        self.visit(node.value)
        for each in node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]:
            self.visit(each)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.refuse(node, f"attribute {node.attr!r} is not allowed here; call a function of torch or a tensor's method")

    def visit_Call(self, node: ast.Call) -> None:
        f = node.func
        if not isinstance(f, ast.Attribute):
            self.refuse(node, "call functions as torch.NAME(...) and methods as tensor.NAME(...) only")
        of_torch = isinstance(f.value, ast.Name) and f.value.id == "torch"
        allowed = FUNCTIONS if of_torch else METHODS
        if f.attr not in allowed:
            self.refuse(node, f"{'torch.' if of_torch else '.'}{f.attr} is not allowed; {nearest(f.attr, allowed)}")
        if not of_torch:
            self.visit(f.value)
        for word in node.keywords:
            if word.arg not in _KEYWORDS:
                self.refuse(node, f"{f.attr} may not be given {word.arg!r}; known: {', '.join(sorted(_KEYWORDS))}")
        for each in (*node.args, *(word.value for word in node.keywords)):
            for part in each.elts if isinstance(each, ast.List | ast.Tuple) else [each]:
                self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        number = isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e9
        if value not in (None, ...) and not number:
            self.refuse(node, f"{str(value)[:40]!r} is no number below 1e9, and only those may stand here")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.Pow):
            power = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
            if not isinstance(power, ast.Constant) or not isinstance(power.value, int | float) or power.value > 8:
                self.refuse(node, "a power is a number of at most 8")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) > 1:
            self.refuse(node, "compare two values, and join comparisons by &")
        self.generic_visit(node)


def _is_view(node: ast.Subscript) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("now", "before")


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number or arithmetic (+ - * /) on numbers."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _is_number(node.left) and _is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
