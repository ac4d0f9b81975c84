"""EXPLAIN: prints a plan, one line per operator, and its class of equality."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.engine.plan import CHANGE_STREAM, QueryPlan, origin_of
from millrace.operators.queues.edge import EdgeSpec
from millrace.protocol import Schema
from millrace.protocol.units import UNITS
from millrace.sql.planned import Catalog, schemas_of
from millrace.sql.updates import depends_on_steps, sheds
from millrace.values.functions import LIBRARY
from millrace.values.written import show_name


def explain(plan: QueryPlan, catalog: Catalog) -> str:
    """The plan, one line per operator, inputs before their readers."""
    lines = [f"query {plan.name}: order {plan.options.order}{_key_words(plan)}, equality {equality(plan, catalog)}"]
    rows = [(f"{name}.source", _stream_words(name, catalog)) for name in plan.reads_streams]
    rows += [(catalog.queries[name].output, f"the rows of query {name}") for name in plan.reads_queries]
    schemas = schemas_of(plan, catalog)
    for node in plan.nodes:
        retracts = node.spec.updates().retracts and schemas[node.name].retracts
        words = f"{node.spec.words(labels(node.inputs))}{', retracts rows' if retracts else ''}"
        inputs = [f"{name}{_edge_words(node.edge(at), schemas[name])}" for at, name in enumerate(node.inputs)]
        rows.append((node.name, f"{words} <- {', '.join(inputs)}"))
    rows.append((plan.sink, f"sink <- {plan.output}"))
    width = max(len(name) for name, _ in rows)
    lines += [f"  {name:<{width}}  {words}" for name, words in rows]
    lines += [f"  note: {note}" for note in plan.notes]
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    return "\n".join(lines)


def _key_words(plan: QueryPlan) -> str:
    if plan.update_key is None:
        return ""
    return f", update key {', '.join(map(show_name, plan.update_key))}" if plan.update_key else ", one row"


def _edge_words(edge: EdgeSpec, schema: Schema) -> str:
    """The policy of an edge, or nothing if it keeps every row."""
    if edge.shed is not None:
        return f" SHED RANDOM {edge.shed}"
    if not edge.updates:
        return ""
    commit = f" {edge.commit.upper()}" if edge.commit else ""
    key = ", ".join(show_name(schema.names[at]) for at in edge.key)
    return f" LATEST{commit} USING {edge.kind.upper()}{f' by {key}' if key else ''}"


def equality(plan: QueryPlan, catalog: Catalog) -> str:
    """The class of equality: the guarantee for two runs over the same tuples.

    rows    the same rows; with event order also in the same order, up to ties
    final   the same last row for each key of an update stream, whatever the number of updates in between
    load    the rows depend on how busy the engine is. A latent stream's tuples are stamped when an operator needs
            their time; a query or an edge that emits only some rows of a key changes which row is current; or SHED
            drops rows. So do functions that are not deterministic: the rows of two runs differ.
    """
    if depends_on_steps(plan, catalog) or sheds(plan) or LIBRARY.drawn(plan):
        return "load"
    latent = any(catalog.stream(name).timestamps == "latent" for name in plan.reads_streams)
    below = any(equality(catalog.queries[name], catalog) == "load" for name in plan.reads_queries)
    return "load" if latent or below else "rows" if plan.update_key is None else "final"


def _stream_words(name: str, catalog: Catalog) -> str:
    stream = catalog.stream(name)
    if stream is CHANGE_STREAM:
        return "changes of the server, internal time"
    if name not in catalog.streams:
        return f"late tuples of stream {origin_of(name)}, internal time at"
    time = f"external time {stream.time}" if stream.time else f"{stream.timestamps} time"
    unit = "" if stream.time_unit == "us" else f" in {UNITS[stream.time_unit].words}"
    return f"stream {name}, {time}{unit}"


def labels(inputs: Sequence[str]) -> list[str]:
    """Short names for inputs: the stream's name, with a number from its second use on."""
    names: list[str] = []
    for name in inputs:
        short = name.removesuffix(".source")
        uses = sum(earlier.removesuffix(".source") == short for earlier in inputs[: len(names)])
        names.append(f"{short}{uses + 1}" if uses else short)
    return names
