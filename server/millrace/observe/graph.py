"""A component's graph, as data and as text: operators, arcs, queues, rates, strategies, break points, forks.

Rule: all texts are drawn from the same data, which is read between two steps. A fork is drawn where the scheduler has
it: between the operator whose output is shared and the operators that take turns. Sinks take no turns, so they do not
follow a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from millrace.protocol.admin.operators import ArcView, ComponentView, GraphView, NodeView, OperatorView, RateView


def draw(
    forks: Mapping[str, str],
    operators: Sequence[OperatorView],
    component: ComponentView,
    rates: Mapping[str, RateView],
) -> GraphView:
    """The graph as data. `forks` has the name of the fork of each operator whose output is shared."""
    members = set(component.operators)
    operators = [operator for operator in operators if operator.name in members]
    return GraphView(
        component=component.name,
        strategy=component.strategy,
        weight=component.weight,
        operators=[_node(operator, rates.get(operator.name)) for operator in operators],
        arcs=list(_arcs(operators, forks)),
    )


def _node(operator: OperatorView, rate: RateView | None) -> NodeView:
    return NodeView(
        name=operator.name,
        kind=operator.kind,
        queries=operator.queries,
        strategy=operator.strategy,
        break_=operator.break_,
        blocked=operator.blocked,
        state_tuples=operator.state_tuples,
        rate=rate,
    )


def _arcs(operators: Sequence[OperatorView], forks: Mapping[str, str]) -> Iterator[ArcView]:
    breaks = {operator.name: operator.break_ for operator in operators}
    for operator in operators:
        for origin, fork in forks.items():
            if fork == operator.name:
                yield ArcView(from_=origin, to=fork, queue_tuples=None, idle_wait_us=None, break_=breaks[origin])
        for reader in operator.inputs:
            origin = reader.from_
            shared = origin in forks and operator.kind != "sink"
            yield ArcView(
                from_=forks[origin] if shared else origin,
                to=operator.name,
                queue_tuples=reader.queue_tuples,
                idle_wait_us=reader.idle_wait_us,
                break_=None if shared else breaks.get(origin),
            )


# -- texts -------------------------------------------------------------------------------------------------------------


def render(graph: GraphView, form: str) -> str:
    """The graph in one of FORMS."""
    return FORMS[form](graph)


def mermaid(graph: GraphView) -> str:
    """A flowchart. Break points are dotted arcs."""
    ids = {node.name: f"n{number}" for number, node in enumerate(graph.operators)}
    shapes = {"source": "([{}])", "sink": "[[{}]]", "fork": "{{{{{}}}}}"}
    lines = ["flowchart LR"]
    for node in graph.operators:
        label = "<br/>".join(part.replace('"', "#quot;") for part in _label(node))
        shape = shapes.get(node.kind, "[{}]").format('"' + label + '"')
        lines.append(f"  {ids[node.name]}{shape}")
    for arc in graph.arcs:
        words = _arc_words(arc).replace('"', "#quot;")
        line = "-.->" if arc.break_ else "-->"
        labelled = f'{line}|"{words}"|' if words else line
        lines.append(f"  {ids[arc.from_]} {labelled} {ids[arc.to]}")
    return "\n".join(lines)


def dot(graph: GraphView) -> str:
    """Graphviz. Break points are dashed arcs."""
    shapes = {"source": "ellipse", "sink": "box3d", "fork": "diamond"}
    lines = [f"digraph {_quoted(graph.component)} {{", "  rankdir=LR;", "  node [shape=box];"]
    for node in graph.operators:
        label = "\\n".join(_escaped(part) for part in _label(node))
        lines.append(f'  {_quoted(node.name)} [shape={shapes.get(node.kind, "box")}, label="{label}"];')
    for arc in graph.arcs:
        style = ", style=dashed" if arc.break_ else ""
        label = _quoted(_arc_words(arc))
        lines.append(f"  {_quoted(arc.from_)} -> {_quoted(arc.to)} [label={label}{style}];")
    return "\n".join([*lines, "}"])


def table(graph: GraphView) -> str:
    """A line per input of an operator."""
    heads = ("operator", "kind", "strategy", "from", "queue", "in/s", "out/s", "idle", "break")
    arcs = graph.arcs
    rows: list[Sequence[str]] = [heads]
    for node in graph.operators:
        given = [arc for arc in arcs if arc.to == node.name]
        rate = node.rate
        own = [node.name, node.kind, node.strategy or "-"]
        end = [per_second(None if rate is None else rate.input), per_second(None if rate is None else rate.output)]
        for position, arc in enumerate(given or [None]):
            share = percent(rate.idle[position]) if rate and len(rate.idle) > position else "-"
            origin, queue = (arc.from_, _count(arc.queue_tuples)) if arc else ("-", "-")
            last = (node.break_ or "-") if position == 0 else ""
            rows.append([*own, origin, queue, *end, share, last])
            own, end = ["", "", ""], ["", ""]
    return columns(rows)


def text(graph: GraphView) -> str:
    """A tree from the sources down; an operator of several inputs is shown in full at the first and named elsewhere."""
    nodes = {node.name: node for node in graph.operators}
    below: dict[str, list[ArcView]] = {name: [] for name in nodes}
    for arc in graph.arcs:
        below[arc.from_].append(arc)
    seen: set[str] = set()

    def branch(arc: ArcView, indent: str, last: bool) -> Iterator[str]:
        name = arc.to
        words = _arc_words(arc)
        head = f"{indent}{'└─' if last else '├─'} {name}"
        if name in seen:
            yield head + (f"  [{words}]" if words else "") + "  (see above)"
            return
        seen.add(name)
        yield f"{head}  {', '.join(_label(nodes[name])[1:])}" + (f"  [{words}]" if words else "")
        for number, following in enumerate(below[name]):
            yield from branch(following, indent + ("   " if last else "│  "), number == len(below[name]) - 1)

    lines = [f"component {graph.component}: {graph.strategy}, weight {graph.weight}"]
    into = {arc.to for arc in graph.arcs}
    for name, node in nodes.items():
        if name not in into:
            lines.append(f"{name}  {', '.join(_label(node)[1:])}")
            for number, arc in enumerate(below[name]):
                lines += branch(arc, "", number == len(below[name]) - 1)
    return "\n".join(lines)


FORMS: Final[Mapping[str, Callable[[GraphView], str]]] = {"mermaid": mermaid, "dot": dot, "table": table, "text": text}


def _label(node: NodeView) -> list[str]:
    """The lines in an operator's box."""
    rate = node.rate
    lines = [node.name, node.kind + (f", {node.strategy}" if node.strategy else "")]
    if rate is not None and node.kind != "fork":
        waits = max(rate.idle, default=0.0)
        lines.append(
            f"{per_second(rate.input)}/s in, {per_second(rate.output)}/s out"
            + (f", waits {percent(waits)}" if waits else "")
        )
    if node.blocked:
        lines.append("blocked")
    return lines


def _arc_words(arc: ArcView) -> str:
    words = [f"queue {arc.queue_tuples}"] if arc.queue_tuples else []
    if arc.break_:
        words.append("break" if arc.break_ == "user" else f"break ({arc.break_})")
    return ", ".join(words)


def _quoted(word: str) -> str:
    return f'"{_escaped(word)}"'


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace('"', '\\"')


# -- numbers and columns -----------------------------------------------------------------------------------------------


def per_second(value: float | None) -> str:
    """A rate in few digits."""
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f}%"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their content, numbers to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    numeric = [all(_is_number(row[at]) for row in rows[1:]) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            word.rjust(width) if right else word.ljust(width)
            for word, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in rows
    )


def _is_number(word: str) -> bool:
    return word in ("", "-") or word.rstrip("%x").replace(".", "", 1).isdigit()
