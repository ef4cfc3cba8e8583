"""Compiles a template to code that asks the environment before it does what may be long."""

# ruff: noqa: N802, N815 - Jinja looks its visitors up by node name

from __future__ import annotations

from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from edgewright.errors import TemplateError
from edgewright.runtime.template.limits import current

_REFUSED_NODES: dict[type[nodes.Node], str] = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from ... import",
    nodes.Extends: "extends",
    nodes.ScopedEvalContextModifier: "autoescape",
}
_Repeated = nodes.For | nodes.Macro | nodes.CallBlock


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}`, which marks what the assistant wrote: renders its body."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class Instrumentation(NodeTransformer):
    """Puts calls of the environment's methods in: a tick into every loop, macro and call block, checked operations.

    Arithmetic (`call_binop`), calls, attributes and items go to the environment already, because it is a sandbox.
    Raises TemplateError for what reads other templates or changes escaping.
    """

    def visit_Include(self, node: nodes.Node) -> nodes.Node:
        raise TemplateError(
            f"the chat template uses {_REFUSED_NODES[type(node)]} at line {node.lineno}, which reads other "
            "templates or changes escaping and isn't allowed; take it out."
        )

    visit_Import = visit_FromImport = visit_Extends = visit_ScopedEvalContextModifier = visit_Include

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_tick(node), node.test, lineno=node.lineno)
        return _with_tick(node)

    def visit_Macro(self, node: nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        return _with_tick(node)

    visit_CallBlock = visit_Macro

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        if len(node.ops) == 1:
            return _call(node, "compare", nodes.Const(node.ops[0].op), node.expr, node.ops[0].expr)
        node.expr = _call(node.expr, "walked", node.expr)
        for operand in node.ops:
            operand.expr = _call(operand.expr, "walked", operand.expr)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _call(node, "joined", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _call(node, "made", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _call(node, "made", node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        for pair in node.items:
            if not isinstance(pair.key, nodes.Const):
                pair.key = _call(pair.key, "walked", pair.key)
        return _call(node, "made", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        part, none = node.arg, nodes.Const(None)
        return _call(node, "sliced", node.node, part.start or none, part.stop or none, part.step or none)


class CheckedCodeGenerator(CodeGenerator):
    """Writes the calls that `Instrumentation` put in as plain calls, and keeps to the deadline."""

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        current().tick()  # Jinja's analysis of names is quadratic
        return super().visit(node, *args, **kwargs)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        if not isinstance(node.node, nodes.EnvironmentAttribute):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        self.write(f"environment.{node.node.name}(")
        for argument in node.args:
            self.visit(argument, frame)
            self.write(", ")
        self.write(")")


def _call(at: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(arguments), [], None, None, lineno=at.lineno)


def _tick(node: _Repeated) -> nodes.Call:
    """One step through a body, which can buffer a reference to each of its constant texts."""
    texts = sum(1 for statement in node.body for _ in statement.find_all(nodes.TemplateData))
    return _call(node, "tick", nodes.Const(16 + 8 * texts))


def _with_tick(node: _Repeated) -> nodes.Node:
    node.body.insert(0, nodes.ExprStmt(_tick(node), lineno=node.lineno))
    return node
