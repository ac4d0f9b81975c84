"""Parses text into statements: reads the grammar's trees into the nodes of `syntax.py`.

Each rule of `grammar.lark` has a method of the same name. The parser looks nothing up: the binder resolves names and
types.
"""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from lark import Lark, TextSlice, Token, Tree
from lark.exceptions import UnexpectedInput

from millrace.sql import syntax as s
from millrace.sql.dialects import find_phrase
from millrace.sql.errors import SqlError
from millrace.sql.limits import DEFAULT, Limits, Piece, members, pieces
from millrace.sql.tables import GRAMMAR, TABLES, make_parser
from millrace.sql.words import explain_unexpected

# Each level costs a few frames of Python's stack in the reader, the binder and the evaluator.
MAX_DEPTH: Final = 100

Branch = Tree[Token]


def parse(text: str, limits: Limits = DEFAULT) -> list[s.Statement]:
    """Parse a text within the limits into its statements, in order. Raises SqlError.

    Statements are parsed one at a time: the trees of one are freed before the next one is parsed.
    """
    return [statement for piece in pieces(text, limits) for statement in _parse_piece(text, piece)]


def _parse_piece(text: str, piece: Piece) -> list[s.Statement]:
    try:
        tree = grammar().parse(TextSlice(text, *piece))
    except UnexpectedInput as error:
        raise explain_unexpected(text, error) from None
    read = [s.Statement(text, Reader(text).read(child)) for child in tree.children if child is not None]
    _free_tree(tree)
    return read


def _free_tree(tree: Branch) -> None:
    """Free a tree branch by branch. Freeing a large tree at once would hold Python's lock for tens of milliseconds."""
    branches = [tree]
    while branches:
        children = branches.pop().children
        branches += [child for child in children if isinstance(child, Tree)]
        children.clear()


@cache
def grammar() -> Lark:
    """The parser, created once: from its stored tables if they exist, else by building the tables."""
    source = pkgutil.get_data("millrace.sql", GRAMMAR)
    assert source is not None
    return make_parser(source.decode(), kept_tables())


def kept_tables() -> bytes | None:
    """The file of tables, also inside a zip; None if it does not exist."""
    try:
        return pkgutil.get_data("millrace.sql", TABLES)
    except OSError:
        return None


def unquote(token: Token) -> str:
    """A name in its compared form: folded unless it was quoted."""
    return token[1:-1].replace('""', '"') if token.type == "QUOTED" else str(token).lower()


@cache
def _words() -> frozenset[str]:
    """The words of the grammar. Signs, literals and names are terminals too, but not words."""
    patterns = [re.fullmatch(r"([a-z]+)\\b", terminal.pattern.value) for terminal in grammar().terminals]
    return frozenset(match[1] for match in patterns if match is not None)


def written(name: str) -> str:
    """A name as SQL that is valid in any statement: in quotes if it could be read as a word of the language."""
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _words()
    return name if plain else '"' + name.replace('"', '""') + '"'


def text_of(token: Token) -> str:
    """The content of a string literal."""
    return token[1:-1].replace("''", "'")


def number_of(token: Token) -> int | float:
    return int(token) if token.isdigit() else float(token)


def _span(item: Branch | Token) -> s.Span:
    if isinstance(item, Token):
        return s.Span(item.start_pos or 0, item.end_pos or 0)
    return s.Span(item.meta.start_pos, item.meta.end_pos)


def _types(children: Sequence[Any]) -> set[str]:
    """The keywords among a rule's children."""
    return {child.type for child in children if isinstance(child, Token)}


def _child(tree: Branch, rule: str) -> Branch | None:
    """The child that is a tree of this rule."""
    return next((child for child in tree.children if isinstance(child, Tree) and child.data == rule), None)


class Reader:
    """Reads one statement's tree."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def read(self, tree: Any) -> Any:
        """The node of a tree, by its rule's method."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SqlError(self._text, _span(tree).start, f"expected at most {MAX_DEPTH} levels of nesting here")
        method: Callable[[Any], Any] = getattr(self, "read_" + tree.data)
        node = method(tree)
        self._depth -= 1
        return node

    def _all(self, children: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(self.read(child) for child in children if isinstance(child, Tree))

    def _maybe(self, tree: Any) -> Any:
        return None if tree is None else self.read(tree)

    # -- statements ------------------------------------------------------------------------------------------------

    def read_create_stream(self, tree: Branch) -> s.CreateStreamStatement:
        fields = tuple(self.read(child) for child in tree.children if _is(child, "field"))
        options = _child(tree, "options")
        place = None if options is None else _span(options)
        return s.CreateStreamStatement(
            _span(tree),
            self.read(_need(tree, "name")),
            fields,
            self._options(tree),
            place,
            "REPLACE" in _types(tree.children),
            _child(tree, "unless_exists") is not None,
        )

    def read_field(self, tree: Branch) -> s.FieldDef:
        return s.FieldDef(
            _span(tree), self.read(tree.children[0]), self.read(tree.children[1]), "NOT" in _types(tree.children)
        )

    def read_create_query(self, tree: Branch) -> s.CreateQueryStatement:
        return s.CreateQueryStatement(
            _span(tree),
            self.read(_need(tree, "name")),
            "REPLACE" in _types(tree.children),
            self._options(tree),
            self.read(tree.children[-1]),
            _child(tree, "unless_exists") is not None,
        )

    def read_create_sink(self, tree: Branch) -> s.CreateSinkStatement:
        name, query, *part = (self.read(child) for child in tree.children if _is(child, "name"))
        unless_exists = _child(tree, "unless_exists") is not None
        return s.CreateSinkStatement(
            _span(tree), name, query, part[0] if part else None, self._options(tree), unless_exists
        )

    def read_alter_stream(self, tree: Branch) -> s.AlterStreamStatement:
        return s.AlterStreamStatement(_span(tree), self.read(_need(tree, "name")), self._options(tree))

    def read_add_column(self, tree: Branch) -> s.AddColumnStatement:
        name, field = self.read(_need(tree, "name")), self.read(_need(tree, "field"))
        return s.AddColumnStatement(_span(tree), name, field, self._maybe(tree.children[-1]))

    def read_rename_column(self, tree: Branch) -> s.RenameColumnStatement:
        name, column, to = (self.read(child) for child in tree.children if _is(child, "name"))
        return s.RenameColumnStatement(_span(tree), name, column, to)

    def read_alter_query(self, tree: Branch) -> s.AlterQueryStatement:
        name, to = (self.read(child) for child in tree.children if _is(child, "name"))
        return s.AlterQueryStatement(_span(tree), name, to)

    def read_drop(self, tree: Branch) -> s.DropStatementNode:
        kind: Any = str(tree.children[1]).lower()
        return s.DropStatementNode(
            _span(tree), kind, self.read(_need(tree, "name")), _child(tree, "if_exists") is not None
        )

    def read_insert(self, tree: Branch) -> s.InsertStatement:
        name, *part = (self.read(child) for child in tree.children if _is(child, "name"))
        columns = _child(tree, "insert_columns")
        rows = tuple(self.read(child) for child in tree.children if _is(child, "value_row"))
        listed = None if columns is None else self._all(columns.children)
        return s.InsertStatement(_span(tree), name, part[0] if part else None, listed, rows)

    def read_value_row(self, tree: Branch) -> s.ValueRow:
        return s.ValueRow(_span(tree), self._all(tree.children))

    def read_show(self, tree: Branch) -> s.ShowStatement:
        of: Any = str(tree.children[1]).lower()
        return s.ShowStatement(_span(tree), of)

    def read_show_create(self, tree: Branch) -> s.ShowCreateStatement:
        kind: Any = str(tree.children[1]).lower()
        return s.ShowCreateStatement(_span(tree), kind, self.read(_need(tree, "name")))

    def read_describe(self, tree: Branch) -> s.DescribeStatement:
        kind: Any = None if tree.children[1] is None else str(tree.children[1]).lower()
        name, *part = (self.read(child) for child in tree.children if _is(child, "name"))
        return s.DescribeStatement(_span(tree), kind, name, part[0] if part else None)

    def read_explain_running(self, tree: Branch) -> s.ExplainRunningStatement:
        return s.ExplainRunningStatement(
            _span(tree), self.read(_need(tree, "name")), "ANALYZE" in _types(tree.children)
        )

    def read_explain(self, tree: Branch) -> s.ExplainStatement:
        return s.ExplainStatement(_span(tree), self.read(tree.children[-1]))

    def read_bare_query(self, tree: Branch) -> s.SelectStatement:
        return s.SelectStatement(_span(tree), self.read(tree.children[0]))

    def _options(self, tree: Branch) -> tuple[s.Option, ...]:
        options = _child(tree, "options")
        return () if options is None else self._all(options.children)

    def read_option(self, tree: Branch) -> s.Option:
        name, value = (_tree(child) for child in tree.children)
        word = _is(value.children[0], "name")
        return s.Option(_span(tree), self.read_name(name), self._option_value(value), _span(value), word)

    def _option_value(self, tree: Branch) -> str | int | float | bool:
        first, *rest = (child for child in tree.children if child is not None)
        if isinstance(first, Tree):
            return str(self.read_name(first).text)
        match first.type:
            case "STRING":
                return text_of(first)
            case "TRUE" | "FALSE":
                return bool(first.type == "TRUE")
            case "MINUS":
                return -number_of(_token(rest[0]))
        return number_of(first)

    def read_name(self, tree: Branch) -> s.Name:
        return s.Name(_span(tree), unquote(_token(tree.children[0])))

    read_column_word = read_function_word = read_table_word = read_alias_name = read_option_name = read_name

    def read_type(self, tree: Branch) -> s.TypeName:
        name = self.read(tree.children[0]).text
        return s.TypeName(_span(tree), name + (" precision" if "PRECISION" in _types(tree.children) else ""))

    # -- queries ---------------------------------------------------------------------------------------------------

    def read_query(self, tree: Branch) -> s.QueryBody:
        ctes, first, *arms = tree.children
        limit, order_by = arms.pop(), arms.pop()
        return s.QueryBody(
            _span(tree),
            () if ctes is None else tuple(self.read(child) for child in _tree(ctes).children if _is(child, "cte")),
            ctes is not None and "RECURSIVE" in _types(_tree(ctes).children),
            self.read(first),
            self._all(arms),
            None if order_by is None else s.Clause(_span(order_by), "ORDER BY"),
            None if limit is None else self._limit(_tree(limit)),
        )

    def _limit(self, tree: Branch) -> s.Clause:
        word, count, *offset = tree.children
        words = str(_token(word)).upper()
        skips = words == "OFFSET" or any(child is not None for child in offset)
        return s.Clause(_span(tree), words, None if skips else self.read(count))

    def read_cte(self, tree: Branch) -> s.Cte:
        return s.Cte(_span(tree), self.read(tree.children[0]), self.read(tree.children[1]))

    def read_union_arm(self, tree: Branch) -> s.Arm:
        words = [str(child).upper() for child in tree.children if isinstance(child, Token)]
        return s.Arm(_span(tree), " ".join(words), self.read(tree.children[-1]))

    def read_nested_query(self, tree: Branch) -> s.QueryBody:
        body: s.QueryBody = self.read(tree.children[0])
        return body

    def read_select(self, tree: Branch) -> s.Select:
        tables = _child(tree, "from_clause")
        group_by = _child(tree, "group_by")
        return s.Select(
            _span(tree),
            tuple(self.read(child) for child in tree.children if _is(child, "item", "all_columns", "table_columns")),
            None if tables is None else self._from(self._all(tables.children)),
            self._clause(tree, "where"),
            () if group_by is None else self._all(group_by.children),
            self._clause(tree, "having"),
            self._clause(tree, "qualify"),
            "DISTINCT" in _types(tree.children),
        )

    def _clause(self, tree: Branch, rule: str) -> s.Expr | None:
        clause = _child(tree, rule)
        return None if clause is None else self.read(clause.children[-1])

    def read_item(self, tree: Branch) -> s.Item:
        return s.Item(_span(tree), self.read(tree.children[0]), self._maybe(tree.children[1]))

    def read_all_columns(self, tree: Branch) -> s.Star:
        return s.Star(_span(tree), None)

    def read_table_columns(self, tree: Branch) -> s.Star:
        return s.Star(_span(tree), self.read(tree.children[0]))

    def read_order_item(self, tree: Branch) -> s.OrderItem:
        words = _types(tree.children)
        nulls = ("FIRST" in words) if "NULLS" in words else None
        return s.OrderItem(_span(tree), self.read(tree.children[0]), "DESC" in words, nulls)

    # -- tables ----------------------------------------------------------------------------------------------------

    def _from(self, tables: Sequence[s.Table]) -> s.Table:
        """Tables separated by commas are joined by the conditions of WHERE."""
        if len(tables) > MAX_DEPTH:
            at = tables[MAX_DEPTH].span.start
            raise SqlError(self._text, at, f"expected at most {MAX_DEPTH} tables in FROM, got {len(tables):,}")
        first, *others = tables
        for other in others:
            first = self._prepend(first, other)
        return first

    def _prepend(self, left: s.Table, right: s.Table) -> s.Table:
        """Put a table before the first table of a tree of joins, which is equivalent to the product of both."""
        match right:
            case s.TablePrimary():
                return s.Join(right.span, left, right, "cross", None, False)
            case s.Join() if right.kind in ("inner", "cross", "left"):
                return replace(right, left=self._prepend(left, right.left))
        message = "a comma before this kind of join is ambiguous: write JOIN ... ON"
        raise SqlError(self._text, right.span.start, message)

    def read_table_primary(self, tree: Branch) -> s.TablePrimary:
        source, *modifiers = tree.children
        parts: dict[str, Any] = {}
        for modifier in modifiers:
            place = _MODIFIERS[str(_tree(modifier).data)]
            if place in parts:
                at = _span(modifier).start
                elsewhere = find_phrase(self._text, at)
                raise SqlError(self._text, *(elsewhere or (at, f"this table already has {_ONE_OF[place]}")))
            parts[place] = self.read(modifier)
        return s.TablePrimary(_span(tree), self.read(source), *map(parts.get, _ONE_OF))

    def read_table_name(self, tree: Branch) -> s.NamedTable:
        return s.NamedTable(_span(tree), self.read(tree.children[0]), self._maybe(tree.children[1]))

    def read_table_function(self, tree: Branch) -> s.TableFunction:
        name, *arguments, partition = tree.children
        keys = () if partition is None else self._all(_tree(partition).children)
        return s.TableFunction(_span(tree), self.read(name), self._all(arguments), keys)

    def read_subquery(self, tree: Branch) -> s.Subquery:
        return s.Subquery(_span(tree), self.read(tree.children[0]))

    def read_alias(self, tree: Branch) -> s.Name:
        name: s.Name = self.read(tree.children[0])
        return name

    def read_range_window(self, tree: Branch) -> s.RangeWindow:
        texts = self._all(tree.children)
        if "UNBOUNDED" in _types(tree.children):
            return s.RangeWindow(_span(tree), None, texts[0] if texts else None)
        return s.RangeWindow(_span(tree), texts[0], texts[1] if len(texts) > 1 else None)

    def read_rows_window(self, tree: Branch) -> s.RowsWindow:
        numbers = [self._count(child) for child in tree.children if isinstance(child, Token) and child.type == "NUMBER"]
        return s.RowsWindow(_span(tree), numbers[0], numbers[1] if len(numbers) > 1 else None)

    def read_latest(self, tree: Branch) -> s.Latest:
        words = _types(tree.children)
        using = _child(tree, "name")
        commit: Any = "lazy" if "LAZY" in words else "eager" if "EAGER" in words else None
        return s.Latest(_span(tree), commit, None if using is None else self.read(using))

    def read_shed(self, tree: Branch) -> s.Shed:
        return s.Shed(_span(tree), self._count(_token(tree.children[-1])))

    def read_deduplicate(self, tree: Branch) -> s.Deduplicate:
        *keys, within = self._all(tree.children)
        return s.Deduplicate(_span(tree), tuple(keys), within)

    def _count(self, token: Token) -> int:
        number = number_of(token)
        if not isinstance(number, int):
            raise SqlError(self._text, _span(token).start, f"expected a whole number of rows, got {token}")
        return number

    def read_interval_text(self, tree: Branch) -> s.IntervalText:
        string = next(child for child in tree.children if isinstance(child, Token) and child.type == "STRING")
        unit = tree.children[-1] if len(tree.children) > 1 else None
        return s.IntervalText(_span(tree), text_of(string), None if unit is None else str(unit))

    def read_join(self, tree: Branch) -> s.Join:
        left, kind, *rest = tree.children
        condition = rest[-1]
        right = _need(tree, "table_primary", last=True)
        words = _types(_tree(kind).children) if kind is not None else set()
        named: Any = next((word.lower() for word in ("LEFT", "RIGHT", "FULL", "CROSS") if word in words), "inner")
        return s.Join(
            _span(tree),
            self.read(left),
            self.read(right),
            named,
            None if condition is None else self.read(_tree(condition).children[-1]),
            "LATEST" in _types(rest),
        )

    def read_followed(self, tree: Branch) -> s.Followed:
        left, right = (child for child in tree.children if _is(child, "table_primary", "join", "followed"))
        options: dict[str, Any] = {}
        for option in tree.children:
            if _is(option, *_FOLLOWED):
                place, value = _FOLLOWED[str(_tree(option).data)], _tree(option).children
                if place in options:
                    raise SqlError(self._text, _span(option).start, f"FOLLOWED BY takes {place} only once")
                options[place] = self.read(value[-1]) if place in ("WITHIN", "ON") else str(_tree(option).data)
        return s.Followed(
            _span(tree),
            self.read(left),
            self.read(right),
            "NO" in _types(tree.children),
            options.get("RECENT or CHRONICLE", "recent"),
            options.get("WITHIN"),
            options.get("ON"),
        )

    # -- expressions -----------------------------------------------------------------------------------------------

    def read_either(self, tree: Branch) -> s.Expr:
        return self._balance("or", [child for child in tree.children if isinstance(child, Tree)])

    def read_every(self, tree: Branch) -> s.Expr:
        return self._balance("and", [child for child in tree.children if isinstance(child, Tree)])

    def _balance(self, word: str, terms: Sequence[Branch]) -> s.Expr:
        """A chain of ANDs or ORs as a shallow tree, so that a generated condition may have thousands of them."""
        if len(terms) == 1:
            expr: s.Expr = self.read(terms[0])
            return expr
        half = len(terms) // 2
        left, right = self._balance(word, terms[:half]), self._balance(word, terms[half:])
        return _operator(word, left, right)

    def read_chain(self, tree: Branch) -> s.Expr:
        """Operators of one rank, from left to right."""
        first, *rest = tree.children
        value: s.Expr = self.read(first)
        if len(rest) > 2 * MAX_DEPTH:
            raise SqlError(self._text, _span(tree).start, f"expected at most {MAX_DEPTH} operators in a row here")
        for sign, term in zip(rest[::2], rest[1::2], strict=True):
            word = "<>" if sign == "!=" else str(sign)
            value = _operator(word, value, self.read(term), at=_span(_token(sign)))
        return value

    def read_prefix(self, tree: Branch) -> s.Expr:
        sign = _token(tree.children[0])
        argument: s.Expr = self.read(tree.children[1])
        if (
            sign.type == "MINUS"
            and isinstance(argument, s.Constant)
            and not isinstance(argument.value, str | bool | None)
        ):
            return s.Constant(_span(tree), -argument.value)
        return s.FunctionCall(_span(tree), s.Name(_span(sign), str(sign).lower()), (argument,), operator=True)

    def read_is_test(self, tree: Branch) -> s.Expr:
        negated = "NOT" in _types(tree.children)
        word = str(tree.children[-1]).lower()
        if word == "unknown":
            word = "null"
        name = s.Name(_span(_token(tree.children[1])), f"is {'not ' if negated else ''}{word}")
        return s.FunctionCall(_span(tree), name, (self.read(tree.children[0]),), operator=True)

    def read_is_distinct(self, tree: Branch) -> s.Expr:
        negated = "NOT" in _types(tree.children)
        name = s.Name(_span(_token(tree.children[1])), f"is {'not ' if negated else ''}distinct from")
        sides = (self.read(tree.children[0]), self.read(tree.children[-1]))
        return s.FunctionCall(_span(tree), name, sides, operator=True)

    def read_between(self, tree: Branch) -> s.Between:
        value, low, high = self._all(tree.children)
        return s.Between(_span(tree), value, low, high, "NOT" in _types(tree.children))

    def read_in_list(self, tree: Branch) -> s.InList:
        value, *written_out = self._all(tree.children)
        many = next((child for child in tree.children if _is_token(child, "LITERALS")), None)
        members = written_out if many is None else _constants(_token(many))
        return s.InList(_span(tree), value, tuple(members), "NOT" in _types(tree.children))

    def read_in_query(self, tree: Branch) -> s.QueryExpr:
        return s.QueryExpr(_span(tree), "in", self.read(tree.children[-1]))

    def read_like(self, tree: Branch) -> s.Like:
        value, pattern, *escape = self._all(tree.children)
        words = _types(tree.children)
        return s.Like(_span(tree), value, pattern, escape[0] if escape else None, "NOT" in words, "ILIKE" in words)

    def read_cast(self, tree: Branch) -> s.CastExpr:
        argument, type = self._all(tree.children)
        return s.CastExpr(_span(tree), argument, type)

    read_cast_call = read_cast

    def read_parenthesised(self, tree: Branch) -> s.Expr:
        expr: s.Expr = self.read(tree.children[0])
        return expr

    def read_scalar_query(self, tree: Branch) -> s.QueryExpr:
        return s.QueryExpr(_span(tree), "scalar", self.read(tree.children[-1]))

    def read_exists(self, tree: Branch) -> s.QueryExpr:
        return s.QueryExpr(_span(tree), "exists", self.read(tree.children[-1]))

    def read_case(self, tree: Branch) -> s.CaseExpr:
        _, subject, *rest = tree.children
        otherwise = rest.pop()
        branches = tuple((self.read(_tree(when).children[0]), self.read(_tree(when).children[1])) for when in rest)
        return s.CaseExpr(_span(tree), self._maybe(subject), branches, self._maybe(otherwise))

    def read_number(self, tree: Branch) -> s.Constant:
        return s.Constant(_span(tree), number_of(_token(tree.children[0])))

    def read_string(self, tree: Branch) -> s.Constant:
        return s.Constant(_span(tree), text_of(_token(tree.children[0])))

    def read_true(self, tree: Branch) -> s.Constant:
        return s.Constant(_span(tree), True)

    def read_false(self, tree: Branch) -> s.Constant:
        return s.Constant(_span(tree), False)

    def read_null(self, tree: Branch) -> s.Constant:
        return s.Constant(_span(tree), None)

    def read_interval(self, tree: Branch) -> s.IntervalLiteral:
        _, string, unit = tree.children
        return s.IntervalLiteral(_span(tree), text_of(_token(string)), None if unit is None else str(unit))

    def read_timestamp(self, tree: Branch) -> s.TimestampLiteral:
        return s.TimestampLiteral(_span(tree), text_of(_token(tree.children[1])))

    def read_column(self, tree: Branch) -> s.ColumnRef:
        *table, name = [self.read(child) for child in tree.children if child is not None]
        return s.ColumnRef(_span(tree), table[0] if table else None, name)

    def read_function(self, tree: Branch) -> s.FunctionCall:
        arguments, test, over = (_child(tree, rule) for rule in ("arguments", "filter", "over"))
        words = _types(tree.children)
        return s.FunctionCall(
            _span(tree),
            self.read(tree.children[0]),
            () if arguments is None else self._all(arguments.children),
            "STAR" in words,
            "DISTINCT" in words,
            None if test is None else self.read(test.children[-1]),
            self._maybe(over),
        )

    def read_over(self, tree: Branch) -> s.Over:
        partition, order_by = _child(tree, "partition_by"), _child(tree, "order_by")
        return s.Over(
            _span(tree),
            () if partition is None else self._all(partition.children),
            () if order_by is None else self._all(order_by.children),
        )

    # -- functions with words between their arguments --------------------------------------------------------------

    def _call(self, tree: Branch, name: str, *arguments: s.Expr) -> s.FunctionCall:
        word = next(child for child in tree.children if isinstance(child, Token))
        return s.FunctionCall(_span(tree), s.Name(_span(word), name), arguments)

    def read_extract(self, tree: Branch) -> s.FunctionCall:
        _, field, value = tree.children
        word = text_of(field) if isinstance(field, Token) else self.read(field).text
        return self._call(tree, "extract", s.Constant(_span(field), word), self.read(value))

    def read_position(self, tree: Branch) -> s.FunctionCall:
        return self._call(tree, "position", *self._all(tree.children))

    def read_substring(self, tree: Branch) -> s.FunctionCall:
        return self._call(tree, "substring", *self._all(_need(tree, "arguments").children))

    def read_substring_from(self, tree: Branch) -> s.FunctionCall:
        return self._call(tree, "substring", *self._all(tree.children))

    def read_substring_for(self, tree: Branch) -> s.FunctionCall:
        value, count = self._all(tree.children)
        return self._call(tree, "substring", value, s.Constant(_span(tree), 1), count)

    def read_trim(self, tree: Branch) -> s.FunctionCall:
        return self._call(tree, _TRIMS[_side(tree)], *self._all(_need(tree, "arguments").children))

    def read_trim_from(self, tree: Branch) -> s.FunctionCall:
        *characters, value = self._all(tree.children)
        return self._call(tree, _TRIMS[_side(tree)], value, *characters)


_MODIFIERS = {
    "alias": "alias",
    "range_window": "window",
    "rows_window": "window",
    "latest": "latest",
    "shed": "shed",
    "deduplicate": "deduplicate",
}
_ONE_OF = {
    "alias": "an alias",
    "window": "a window",
    "latest": "LATEST",
    "shed": "SHED",
    "deduplicate": "DEDUPLICATE",
}
_FOLLOWED = {
    "recent": "RECENT or CHRONICLE",
    "chronicle": "RECENT or CHRONICLE",
    "within": "WITHIN",
    "followed_on": "ON",
}
_TRIMS = {"BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}


def _side(tree: Branch) -> str:
    return next((side for side in _TRIMS if side in _types(tree.children)), "BOTH")


def _operator(word: str, left: s.Expr, right: s.Expr, at: s.Span | None = None) -> s.FunctionCall:
    span = s.Span(left.span.start, right.span.end)
    return s.FunctionCall(span, s.Name(at or span, word), (left, right), operator=True)


def _constants(token: Token) -> list[s.Constant]:
    """Read the members of a list that is one token."""
    start = token.start_pos or 0
    return [s.Constant(s.Span(start + at, start + at + len(text)), _constant(text)) for at, text in members(token)]


def _constant(text: str) -> int | float | str | bool | None:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    word = text.lower()
    if word in _WORDS:
        return _WORDS[word]
    return int(text) if text.lstrip("-").isdigit() else float(text)


_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}


def _is_token(child: Any, type: str) -> bool:
    return isinstance(child, Token) and child.type == type


def _is(child: Any, *rules: str) -> bool:
    return isinstance(child, Tree) and child.data in rules


def _need(tree: Branch, rule: str, last: bool = False) -> Branch:
    matches = [child for child in tree.children if isinstance(child, Tree) and child.data == rule]
    assert matches, f"{tree.data} without {rule}"
    return matches[-1 if last else 0]


def _tree(child: Branch | Token) -> Branch:
    assert isinstance(child, Tree)
    return child


def _token(child: Branch | Token) -> Token:
    assert isinstance(child, Token)
    return child
