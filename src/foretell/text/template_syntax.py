"""The syntax of an untrusted template: what chat templates need and nothing else, with its costs made visible.

Where the compiled template would make a text or a list without asking the environment, the tree is rewritten to call a
filter that does; the names of these filters cannot be written in a template.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

MOST_CHARACTERS, MOST_NODES, MOST_DEPTH = 100_000, 20_000, 60
STEPS, MEASURED, JOINED = "steps of a loop", "measured value", "joined texts"

ALLOWED = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.AssignBlock),
    *(nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Scope, nodes.ExprStmt),
    *(nodes.Name, nodes.NSRef, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair, nodes.Keyword),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Concat),
    *(nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Break, nodes.Continue),
)
NOT_NEEDED = {"Pow": "powers", "Include": "other files", "Import": "other files", "FromImport": "other files"}
NOT_NEEDED |= {"Extends": "other files", "Block": "blocks"}


class GenerationTag(Extension):
    """`{% generation %}`, by which some templates mark answers: its body is rendered as if it were not there."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def check_tree(tree: nodes.Template) -> None:
    """Raise SecurityError for a tree with something that is not needed, or one that is too large."""
    level: list[Any] = [tree]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MOST_NODES or depth > MOST_DEPTH:
            raise SecurityError("it is too long or nested too deeply")
        for node in level:
            check_node(node)
        level = [child for node in level for child in node.iter_child_nodes()]


def check_node(node: nodes.Node) -> None:
    """Raise SecurityError for a node that chat templates do not need."""
    kind = type(node).__name__
    if not isinstance(node, ALLOWED):
        raise SecurityError(f"it uses {NOT_NEEDED.get(kind, kind)}, which chat templates do not need")
    if isinstance(node, nodes.For) and node.recursive:
        raise SecurityError("it uses recursive loops, which chat templates do not need")
    if isinstance(node, nodes.Name) and (node.name == "self" or node.name.startswith("_")):
        raise SecurityError(f"it uses the name {node.name!r}, which is not a value of a conversation")


class Guards(NodeTransformer):
    """Puts a filter around loops, and around texts and lists that the compiled code would make by itself."""

    def visit(self, node: nodes.Node, *arguments: Any, **keywords: Any) -> Any:
        self.generic_visit(node)
        if isinstance(node, nodes.For):
            node.iter = guarded(node.iter, STEPS)
        if isinstance(node, nodes.Concat):
            return guarded(nodes.List(node.nodes, lineno=node.lineno), JOINED)
        return guarded(node, MEASURED) if makes_list(node) else node


def makes_list(node: nodes.Node) -> bool:
    """True for the display of a list, dict or tuple, and for a slice."""
    is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    is_read = not isinstance(node, nodes.Tuple) or node.ctx == "load"  # else the names that an assignment sets
    return is_slice or (isinstance(node, nodes.List | nodes.Dict | nodes.Tuple) and is_read)


def guarded(node: nodes.Node, name: str) -> nodes.Filter:
    """A call of a filter on a node."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)
