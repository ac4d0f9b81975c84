"""Words of other SQL dialects, and the Millrace form of each.

A sentence about a word of Flink SQL, ksqlDB, RisingWave, Materialize, PostgreSQL, DuckDB or Spark SQL helps more than a
list of expected tokens. This table is consulted before any other error about the place. `write` is an example
that Millrace takes: a test plans each of them, over streams `s` and `r` with the columns ts, k, v (bigint), x (double)
and t (text), of which `u` is an update stream keyed by k. Where a word has no replacement, the note says why.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_GUIDE: Final = "docs/guides/coming-from.md"


def guided(sentence: str) -> str:
    """The sentence with the page that lists what other systems have and Millrace does not."""
    return f"{sentence} and {_GUIDE}" if "see docs/" in sentence else f"{sentence}; see {_GUIDE}"


@dataclass(frozen=True, slots=True)
class Word:
    """What to write for a word of another dialect, and a note."""

    write: str = ""
    note: str = ""

    def sentence(self, what: str) -> str:
        """`what` is the complaint, such as `the function hour does not exist`. The sentence ends with the guide's page."""
        if self.write:
            sentence = f"{what}. Write {self.write}{f' ({self.note})' if self.note else ''}"
        else:
            sentence = f"{what}: {self.note}" if self.note else what
        return guided(sentence)


_CLOCK = "the row's own time: the result must not depend on the clock"
_LISTS = "Millrace has no list type; select the rows themselves, or use last(...) or count(...)"
_CURRENT = "the definition of a stream fixes the type of each column"
_NO_DATES = "Millrace has no date type; use a timestamp"
_JSON = "Millrace has no JSON type; extract the values before you feed the row, or use regexp_substr"


def _same(write: str, *names: str, note: str = "") -> dict[str, Word]:
    return dict.fromkeys(names, Word(write, note))


# By name: an expression over one row.
FUNCTIONS: Final[Mapping[str, Word]] = {
    **{
        name: Word(f"extract({name} FROM ts)")
        for name in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millennium", "century")
    },
    **_same("extract(day FROM ts)", "dayofmonth"),
    **_same("extract(dow FROM ts)", "dayofweek", "weekday", "day_of_week"),
    **_same("extract(doy FROM ts)", "dayofyear", "day_of_year"),
    **_same("extract(week FROM ts)", "weekofyear"),
    **_same("extract(epoch FROM ts)", "unix_timestamp", "to_unixtime", "epoch", "to_unix_timestamp"),
    **_same("extract(epoch FROM ts) * 1000", "epoch_ms", "unix_millis", "to_epoch_ms"),
    **_same("to_char(ts, 'YYYY-MM-DD HH24:MI')", "date_format", "strftime", "format_timestamp", "formatdatetime"),
    **_same("to_char(ts, 'YYYY-MM-DD')", "timestamptostring", "datetostring"),
    **_same("to_timestamp(x)", "from_unixtime", "to_timestamp_ltz", "from_epoch", note="seconds since 1970"),
    **_same("t::timestamp", "to_date", "strptime", "parse_timestamp", "stringtotimestamp", "parse_date", "str_to_date"),
    **_same("date_trunc('day', ts)", "date", note=_NO_DATES),
    **_same("ts + INTERVAL '1 day'", "date_add", "dateadd", "timestampadd", "adddate", "add_months"),
    **_same("ts - INTERVAL '1 day'", "date_sub", "subdate"),
    **_same("extract(epoch FROM ts - TIMESTAMP '2026-01-01')", "datediff", "timestampdiff", "date_diff", "age"),
    **_same(
        "date_trunc('minute', ts)", "date_bin", "time_bucket", "timestamp_trunc", note="or FROM TUMBLE for any width"
    ),
    **_same("length(t)", "len", "char_len", "str_len"),
    **_same("upper(t)", "ucase", "toupper", "to_upper"),
    **_same("lower(t)", "lcase", "tolower", "to_lower"),
    **_same("strpos(t, 'a')", "instr", "charindex", "locate", "indexof", "position_of"),
    **_same("substring(t, 1, 3)", "mid", "substr_utf8"),
    **_same("t || ',' || k", "concat_ws", "format", "printf", "format_string"),
    **_same("split_part(t, ',', 1)", "split", "split_index", "string_split", "string_to_array", "regexp_split_to_array"),
    **_same("regexp_substr(t, 'a')", "regexp_extract", "regexp_match", "regexp_matches", "regexp_extract_all"),
    **_same("regexp_like(t, 'a')", "rlike", "regexp", "regexp_full_match", "regexp_contains", "similar_to"),
    **_same("starts_with(t, 'a')", "startswith", "prefix"),
    **_same("t LIKE '%a'", "ends_with", "endswith", "suffix"),
    **_same("t LIKE '%a%'", "contains", "str_contains"),
    **_same("replace(t, 'a', 'b')", "translate", "overlay"),
    **_same("", "lpad", "rpad", "repeat", "reverse", "initcap", "space", note="write it as a Python function: see docs/functions.md"),
    **_same("", "md5", "sha1", "sha256", "sha2", "hash", "crc32", "xxhash64", "encode", "decode", "to_base64", "from_base64", "hex", "unhex", note="write it as a Python function: see docs/functions.md"),
    **_same("", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "radians", "degrees", "pi", "cbrt", note="write it as a Python function: see docs/functions.md"),
    **_same("coalesce(v, 0)", "ifnull", "nvl", "zeroifnull"),
    **_same("CASE WHEN v IS NULL THEN 0 ELSE 1 END", "nvl2"),
    **_same("v IS NULL", "isnull"),
    **_same("v IS NOT NULL", "isnotnull", "notnull"),
    **_same("CASE WHEN v > 1 THEN 2 ELSE 3 END", "if", "iif", "ifelse"),
    **_same("nullif(x, 0)", "nanvl"),
    **_same("trunc(x)", "truncate"),
    **_same("v % 2", "modulo", "remainder"),
    **_same("v / 2", "div"),
    **_same("log(x)", "log2", note="divide by log(2)"),
    **_same("t::double", "try_cast", "safe_cast", "to_number", "try_to_number", note="a text that is not a number drops its row, and Millrace counts it"),
    **_same("", "json_value", "json_query", "json_extract", "get_json_object", "json_extract_path_text", "extractjsonfield", "jsonb_extract_path", "from_json", "to_json", "to_jsonb", "json_object", "parse_json", note=_JSON),
    **_same("", "unnest", "explode", "generate_series", "flatten", "posexplode", "cardinality", "array_length", "array", "map", "struct", "named_struct", note="Millrace has no lists, maps or structs; feed one row for each value"),
    **_same("ts", "proctime", "localtime", "sysdate", "getdate", "mz_now", "unix_date", "current_time", "transaction_timestamp", "statement_timestamp", "rowtime", note=_CLOCK),
    **_same("", "uuid", "gen_random_uuid", "rand", "newid", "generate_uuid", "monotonically_increasing_id", note="the result must not depend on chance; feed the value with the row"),
    **_same("", "typeof", "pg_typeof", note=_CURRENT),
    **_same("FROM TUMBLE(s, ts, INTERVAL '1 minute')", "tumble", "tumbling", "window", note="a window belongs in FROM, and its bounds are window_start and window_end"),
    **_same("FROM HOP(s, ts, INTERVAL '1 minute', INTERVAL '1 hour')", "hop", "hopping", note="a window belongs in FROM, and its bounds are window_start and window_end"),
    **_same("FROM SESSION(s, ts, INTERVAL '1 minute')", "session", "session_window", note="a window belongs in FROM, and its bounds are window_start and window_end"),
    **_same("window_start", "tumble_start", "hop_start", "session_start", "windowstart", note="a column of FROM TUMBLE(...), HOP(...) and SESSION(...)"),
    **_same("window_end", "tumble_end", "hop_end", "session_end", "windowend", note="a column of FROM TUMBLE(...), HOP(...) and SESSION(...)"),
    **_same("window_end", "tumble_rowtime", "hop_rowtime", "tumble_proctime", note="the row's own time is window_end minus a microsecond"),
    **_same("GROUP BY k", "rollup", "cube", note="write one query for each grouping"),
}  # fmt: skip

# By name: an aggregate over rows.
AGGREGATES: Final[Mapping[str, Word]] = {
    **_same("approx_quantile(x, 0.5)", "median", "approx_median"),
    **_same("approx_quantile(x, 0.9)", "percentile", "percentile_cont", "percentile_disc", "approx_percentile", "quantile", "quantile_cont", "percentile_approx"),
    **_same("count(DISTINCT v)", "approx_count_distinct", "approx_distinct", "count_distinct", "hll_count_distinct"),
    **_same("count(*) FILTER (WHERE v > 1)", "count_if", "countif"),
    **_same("sum(v) FILTER (WHERE v > 1)", "sum_if", "sumif"),
    **_same("first(v)", "first_value", "earliest_by_offset", "arbitrary"),
    **_same("last(v)", "last_value", "latest_by_offset", "any_value"),
    **_same("arg_max(v, x)", "max_by", "argmax"),
    **_same("arg_min(v, x)", "min_by", "argmin"),
    **_same("stddev(x)", "stddev_samp", "std", "stdev"),
    **_same("power(stddev(x), 2)", "variance", "var_samp", "var"),
    **_same("power(stddev(x), 2) * (count(x) - 1) / count(x)", "var_pop"),
    **_same("sqrt(power(stddev(x), 2) * (count(x) - 1) / count(x))", "stddev_pop"),
    **_same("min(v)", "bool_and", "every", "bool_or", "bit_and", "bit_or", "logical_and", "logical_or", note="of CASE WHEN ... THEN 1 ELSE 0 END"),
    **_same("avg(x)", "mean"),
    **_same("sum(x)", "total", "fsum", "kahan_sum"),
    **_same("", "array_agg", "collect_list", "collect_set", "list", "group_concat", "string_agg", "listagg", "json_agg", "jsonb_agg", "json_arrayagg", "histogram", "map_agg", "topk", "topkdistinct", note=_LISTS),
    **_same("", "corr", "covar_pop", "covar_samp", "regr_slope", "mode", "skewness", "kurtosis", "product", note="write it as a Python aggregate: see docs/functions.md"),
    **_same("", "grouping", "grouping_id", note="a query has one grouping"),
}  # fmt: skip

# By name, with OVER: functions of a row's neighbours, which need an operator that does not exist yet.
OVER: Final[Mapping[str, Word]] = {
    **_same(
        "SELECT first(v) AS before, last(v) AS v FROM s [ROWS 2 SLIDE 1]",
        "lag",
        "lead",
        note="pairs each row with the previous row of the whole stream, not of its key",
    ),
    **_same(
        "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v DESC) AS n FROM s QUALIFY n <= 3",
        "rank",
        "dense_rank",
        "ntile",
        "percent_rank",
        "cume_dist",
        note="ties are numbered by arrival",
    ),
}

# By name: a column that other systems have without a declaration.
COLUMNS: Final[Mapping[str, Word]] = {
    **_same("ts", "current_timestamp", "localtimestamp", "current_time", "localtime", "sysdate", "systimestamp", note=_CLOCK),
    **_same("date_trunc('day', ts)", "current_date", note=_CLOCK),
    **_same("ts", "rowtime", "proctime", "event_time", note="the stream names the column of the row's own time"),
    **_same("window_start", "windowstart", note="a column of FROM TUMBLE(...), HOP(...) and SESSION(...)"),
    **_same("window_end", "windowend", note="a column of FROM TUMBLE(...), HOP(...) and SESSION(...)"),
    **_same("SELECT v, row_number() OVER (ORDER BY v) AS n FROM s QUALIFY n <= 5", "rownum", "rowid"),
}  # fmt: skip

# By name: a table function in FROM.
TABLES: Final[Mapping[str, Word]] = {
    **_same("FROM TUMBLE(s, ts, INTERVAL '1 minute')", "tumbling", "window", "table", "time_window"),
    **_same("FROM HOP(s, ts, INTERVAL '1 minute', INTERVAL '1 hour')", "hopping", "sliding"),
    **_same("FROM HOP(s, ts, INTERVAL '1 minute', INTERVAL '1 hour')", "cumulate", note="windows of one size; one starts every step"),
    **_same("FROM SESSION(s, ts, INTERVAL '1 minute')", "session_window"),
    **_same("", "unnest", "generate_series", "explode", "json_table", "flatten", note="Millrace has no lists; feed one row for each value"),
    **_same("", "read_csv", "read_parquet", "read_json", "read_json_auto", note="feed the file to a stream: millrace feed s FILE"),
}  # fmt: skip

# By name: a type.
TYPES: Final[Mapping[str, Word]] = {
    **_same("bigint", "tinyint", "int2", "int16", "int32", "int64", "long", "hugeint", "uint", "serial", "bigserial", "number"),
    **_same("double", "decimal", "numeric", "dec", "float4", "float64", "money", note="a double is not decimal; store whole cents in a bigint"),
    **_same("text", "character", "nvarchar", "nchar", "clob", "uuid", "enum"),
    **_same("text", "json", "jsonb", "variant", note=_JSON),
    **_same("bytes", "binary", "varbinary"),
    **_same("timestamp", "datetime", "date", "timestamp_ltz", "timestamp_ntz", "time", note=_NO_DATES),
    **_same("", "array", "map", "struct", "row", "list", "multiset", note="Millrace has no lists, maps or structs; feed one row for each value"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Phrase:
    """A sequence of words at which the parser fails. `write` is a statement or a part of one (see the test)."""

    pattern: re.Pattern[str]
    what: str
    word: Word

    @property
    def sentence(self) -> str:
        return self.word.sentence(self.what)


def _phrase(pattern: str, what: str, write: str = "", note: str = "") -> Phrase:
    return Phrase(re.compile(pattern, re.IGNORECASE), what, Word(write, note))


_START: Final = r"\A\s*"
_EMITS = "the option emit sets how often a key is emitted"
_TABLE = "CREATE QUERY q AS SELECT k, count(*) AS n FROM s GROUP BY k"
_TIMES = "CREATE STREAM z (ts TIMESTAMP, v BIGINT) WITH (time = 'ts', disorder = '5 seconds')"
_KEYED = "CREATE STREAM z (ts TIMESTAMP, k BIGINT) WITH (time = 'ts', update_key = 'k')"

# In the order of the search.
PHRASES: Final[tuple[Phrase, ...]] = (
    # statements
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?(TEMP(ORARY)?\s+)?MATERIALIZED\s+VIEW\b", "CREATE MATERIALIZED VIEW is not supported", _TABLE, "Millrace keeps a query up to date"),
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?(TEMP(ORARY)?\s+)?(RECURSIVE\s+)?VIEW\b", "CREATE VIEW is not supported", _TABLE, "queries can read queries"),
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?(TEMP(ORARY)?\s+|EXTERNAL\s+|SOURCE\s+)*TABLE\b[^;]*\bAS\s+(SELECT|WITH)\b", "CREATE TABLE is not supported", _TABLE, "Millrace keeps a query with GROUP BY and without a window up to date, like a table"),
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?(TEMP(ORARY)?\s+|EXTERNAL\s+|SOURCE\s+|UNLOGGED\s+)*TABLE\b", "CREATE TABLE is not supported", _KEYED, "the newest row of each key; without update_key, every row"),
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?STREAM\s+(IF\s+NOT\s+EXISTS\s+)?\S+\s+AS\b", "CREATE STREAM ... AS is not supported", "CREATE QUERY q AS SELECT v FROM s", "clients and queries read a query like a stream"),
    _phrase(r"\bCREATE\s+OR\s+REPLACE\s+SINK\b", "a sink cannot be replaced", "CREATE SINK z FROM q WITH (type = 'stdout')", "after DROP SINK, or under another name"),
    _phrase(r"\bCREATE\s+SOURCE\b", "CREATE SOURCE is not supported", _TIMES, "clients feed it"),
    _phrase(r"\bCREATE\s+(SINK|SOURCE)?\s*CONNECT(OR|ION)\b", "Millrace has no connectors", "CREATE SINK z FROM q WITH (type = 'stdout')", "feed a stream by `millrace feed`, a client, or TCP"),
    _phrase(r"\bCREATE\s+(OR\s+REPLACE\s+)?(TEMPORARY\s+)?(FUNCTION|AGGREGATE|MACRO|PROCEDURE)\b", "CREATE FUNCTION is not supported", note="write functions in Python, in a module that the server's configuration names: see docs/functions.md"),
    _phrase(r"\bCREATE\s+(UNIQUE\s+)?INDEX\b", "Millrace has no indexes", note="joins and groups find their rows without one"),
    _phrase(r"\bCREATE\s+(DATABASE|SCHEMA|CATALOG|CLUSTER|USER|ROLE|TYPE|SECRET|SEQUENCE|TRIGGER)\b", "Millrace has only streams, queries and sinks", note="they share one namespace"),
    _phrase(_START + r"INSERT\s+INTO\s+\S+\s+(SELECT|WITH)\b", "INSERT INTO ... SELECT is not supported", "CREATE SINK z FROM q WITH (type = 'stdout')", "a sink or another query reads the rows of a query"),
    _phrase(_START + r"(INSERT\s+(OVERWRITE|OR)\b|INSERT\s+INTO\b.*\b(ON\s+CONFLICT|ON\s+DUPLICATE|RETURNING)\b)", "INSERT only adds rows", "INSERT INTO s (ts, v) VALUES ('2026-01-01', 1)", "in a stream with an update_key, the newest row of each key is current"),
    _phrase(_START + r"(UPDATE|DELETE|TRUNCATE|MERGE|UPSERT|REPLACE)\b", "rows of a stream never change", _KEYED, "feed a new row of the key: an update stream keeps the newest"),
    _phrase(_START + r"SHOW\s+(TABLES|SOURCES|TOPICS)\b|" + _START + r"LIST\s+(STREAMS|TABLES|TOPICS)\b", "Millrace has only streams, queries and sinks", "SHOW STREAMS"),
    _phrase(_START + r"SHOW\s+((MATERIALIZED\s+)?VIEWS|JOBS)\b|" + _START + r"LIST\s+QUERIES\b", "Millrace has only streams, queries and sinks", "SHOW QUERIES"),
    _phrase(_START + r"SHOW\s+(CREATE\s+)?(TABLE|VIEW|MATERIALIZED\s+VIEW|SOURCE)\b", "Millrace has only streams, queries and sinks", "SHOW CREATE STREAM s"),
    _phrase(_START + r"(DESCRIBE|DESC)\s+(EXTENDED|TABLE|VIEW|SOURCE|FORMATTED)\b", "Millrace has only streams, queries and sinks", "DESCRIBE s"),
    _phrase(_START + r"SHOW\b", "SHOW lists STREAMS, QUERIES, SINKS, COMPONENTS or OPERATORS", "SHOW STREAMS"),
    _phrase(_START + r"LIST\b", "LIST is not supported", "SHOW STREAMS"),
    _phrase(_START + r"(PRINT|TAIL|SUBSCRIBE|FETCH|DECLARE)\b", "this statement is not supported", note="type `millrace tail q`"),
    _phrase(_START + r"TERMINATE\b", "TERMINATE is not supported", note="type `millrace query pause q`, or write DROP QUERY q"),
    _phrase(_START + r"(PAUSE|RESUME|STOP|START)\b", "this statement is not supported", note="type `millrace query pause q` or `millrace query resume q`"),
    _phrase(_START + r"(SET|RESET|USE|UNSET)\b", "Millrace has no session settings", note="set the options of a stream or query after WITH, and the server's in its configuration"),
    _phrase(_START + r"(BEGIN|COMMIT|ROLLBACK|START\s+TRANSACTION|SAVEPOINT)\b", "Millrace has no transactions", note="`millrace apply FILE.sql` applies all changes of a file or none"),
    _phrase(_START + r"(GRANT|REVOKE)\b", "Millrace has no grants", note="a client needs a token: see docs/howto/secure.md"),
    _phrase(_START + r"(COPY|LOAD|EXPORT|UNLOAD|IMPORT)\b", "this statement is not supported", note="type `millrace feed s FILE` to read a file, and CREATE SINK to write one"),
    _phrase(_START + r"(VALUES|TABLE)\b", "this statement is not supported", note="clients feed rows: `millrace feed s FILE`, or INSERT INTO s VALUES (...)"),
    _phrase(_START + r"(ANALYZE|VACUUM|REFRESH|CALL|EXECUTE|PREPARE|PRAGMA|ATTACH|INSTALL|COMMENT)\b", "this statement is not supported"),
    _phrase(r"\bALTER\s+(TABLE|SOURCE)\b", "ALTER TABLE is not supported", "ALTER STREAM s SET (disorder = '5 seconds')"),
    _phrase(r"\b(DROP|ALTER)\s+(MATERIALIZED\s+VIEW|TABLE|VIEW|SOURCE|CONNECTOR|INDEX|FUNCTION)\b", "Millrace has only streams, queries and sinks", "DROP QUERY q"),
    # a stream's columns
    _phrase(r"\bWATERMARK\s+FOR\b", "WATERMARK FOR is not supported", _TIMES, "the option disorder sets how late a row may be"),
    _phrase(r"\bPRIMARY\s+KEY\b|(?<=\w)\s+KEY\b(?=\s*[,)])", "PRIMARY KEY is not supported", _KEYED, "the newest row of a key replaces the previous row"),
    _phrase(r"\bPARTITIONED\s+BY\b|\bDISTRIBUTED\s+BY\b|\bCLUSTERED\s+BY\b", "streams are not partitioned", note="a backfill on Spark finds the key automatically"),
    _phrase(r"\bTIMESTAMP\s*(\(\d\)\s*)?(WITH|WITHOUT)\s+(LOCAL\s+)?TIME\s+ZONE\b", "a timestamp is always UTC", _TIMES),
    _phrase(r"\b(ARRAY|MAP|STRUCT|ROW|MULTISET|LIST)\s*[<(]|\b(BIGINT|INT|TEXT|DOUBLE|STRING|INTEGER)\s*\[\]", "Millrace has no lists, maps or structs", note="feed one row for each value"),
    _phrase(r"\bMETADATA\s+(FROM|VIRTUAL)\b|\bINCLUDE\s+(KEY|TIMESTAMP|PARTITION|OFFSET)\b", "a stream has only the columns that clients feed", note="feed the value with the row"),
    _phrase(r"\bGENERATED\s+ALWAYS\b|\bAS\s+PROCTIME\b", "a stream has no computed columns", "CREATE STREAM z (v BIGINT) WITH (timestamps = 'internal')", "the server stamps the rows; compute the rest in a query"),
    _phrase(r"\bREFERENCES\b|\bUNIQUE\b|\bCHECK\s*\(", "Millrace checks only the types of a row and NOT NULL", "SELECT v FROM s WHERE v > 0"),
    # when rows are emitted
    _phrase(r"\bEMIT\s+(CHANGES|FINAL|ON\s+(WINDOW\s+CLOSE|UPDATE|CHANGE)|WITH(OUT)?\s+DELAY|STREAM|AFTER)\b", "EMIT is not supported", "CREATE QUERY q WITH (emit = 'every') AS SELECT k, count(*) AS n FROM s GROUP BY k", f"a window emits its rows once, when it closes; without a window, {_EMITS}"),
    _phrase(r"\bGRACE\s+PERIOD\b", "GRACE PERIOD is not supported", _TIMES, "the option disorder sets how late a row may be"),
    _phrase(r"\bWINDOW\s+TUMBLING\b", "a window belongs in FROM", "SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '30 seconds') GROUP BY k"),
    _phrase(r"\bWINDOW\s+HOPPING\b", "a window belongs in FROM", "SELECT k, count(*) AS n FROM HOP(s, ts, INTERVAL '10 seconds', INTERVAL '30 seconds') GROUP BY k"),
    _phrase(r"\bWINDOW\s+SESSION\b", "a window belongs in FROM", "SELECT k, count(*) AS n FROM SESSION(s, ts, INTERVAL '30 seconds') GROUP BY k"),
    _phrase(r"\bWINDOW\s+\w+\s+AS\b", "the WINDOW clause is not supported", "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM s QUALIFY n <= 3"),
    _phrase(r"\bTABLE\s*\(\s*(TUMBLE|TABLE)\b", "a window does not need TABLE(...)", "SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 minute') GROUP BY k"),
    _phrase(r"\bTABLE\s*\(\s*HOP\b|\bTABLE\s*\(\s*CUMULATE\b", "a window does not need TABLE(...)", "SELECT k, count(*) AS n FROM HOP(s, ts, INTERVAL '1 minute', INTERVAL '1 hour') GROUP BY k"),
    _phrase(r"\bTABLE\s*\(\s*SESSION\b", "a window does not need TABLE(...)", "SELECT k, count(*) AS n FROM SESSION(s, ts, INTERVAL '1 minute') GROUP BY k"),
    _phrase(r"\bDESCRIPTOR\s*\(", "a window takes the column itself", "SELECT k, count(*) AS n FROM TUMBLE(s, ts, INTERVAL '1 minute') GROUP BY k"),
    # patterns and joins
    _phrase(r"\bMATCH_RECOGNIZE\b", "MATCH_RECOGNIZE is not supported", "SELECT a.v, b.v AS w FROM s a FOLLOWED BY r b WITHIN '5 seconds' ON a.k = b.k"),
    _phrase(r"\bASOF\s+(LEFT\s+|INNER\s+)?JOIN\b|\b(LEFT|INNER)\s+ASOF\s+JOIN\b", "ASOF JOIN is not supported", "SELECT s.v, u.v AS w FROM s JOIN LATEST u ON s.k = u.k", "joins each row on the left with the row that is current at its time"),
    _phrase(r"\bTEMPORAL\s+JOIN\b|\bFOR\s+SYSTEM_TIME\b|\bAS\s+OF\b", "Millrace does not keep past versions of a table", "SELECT s.v, u.v AS w FROM s JOIN LATEST u ON s.k = u.k", "joins each row on the left with the row that is current at its time"),
    _phrase(r"\b(LEFT\s+)?SEMI\s+JOIN\b", "SEMI JOIN is not supported", "SELECT s.v FROM s JOIN LATEST u ON s.k = u.k", "tests against the current row of the key"),
    _phrase(r"\b(LEFT\s+)?ANTI\s+JOIN\b", "ANTI JOIN is not supported", "SELECT s.v FROM s FOLLOWED BY NO r WITHIN '5 seconds' ON s.k = r.k"),
    _phrase(r"\bJOIN\s+(\w+\s+)?(\w+\s+)?WITHIN\b", "a join takes a range after each table", "SELECT s.v FROM s [RANGE '5 seconds'] JOIN r [RANGE '5 seconds'] ON s.k = r.k"),
    _phrase(r"\bLATERAL\b|\b(CROSS|OUTER)\s+APPLY\b", "LATERAL is not supported", "SELECT s.v, u.v AS w FROM s JOIN LATEST u ON s.k = u.k", "a subquery in FROM cannot read its neighbours"),
    # clauses
    _phrase(r"\bGROUPING\s+SETS\b|\bGROUP\s+BY\s+ALL\b", "a query has one grouping", "SELECT k, count(*) AS n FROM s GROUP BY k", "write one query for each grouping, and combine them with UNION ALL"),
    _phrase(r"\bWITHIN\s+GROUP\b", "WITHIN GROUP is not supported", "SELECT approx_quantile(x, 0.9) AS p FROM TUMBLE(s, ts, INTERVAL '1 minute')"),
    _phrase(r"\bDISTINCT\s+ON\b", "DISTINCT ON is not supported", "SELECT k, v FROM s QUALIFY row_number() OVER (PARTITION BY k ORDER BY v DESC) = 1"),
    _phrase(r"\bFETCH\s+(FIRST|NEXT)\b|\bSELECT\s+TOP\b|\bWITH\s+TIES\b", "a stream has no end", "SELECT v, row_number() OVER (ORDER BY v DESC) AS n FROM s QUALIFY n <= 5"),
    _phrase(r"\b(TABLESAMPLE|USING\s+SAMPLE|SAMPLE)\b", "Millrace has no sampling clause", note="type `millrace operator insert q.project1 --sample 0.1`, or write SHED RANDOM n after the table"),
    _phrase(r"\bPARTITION\s+BY\b", "this clause takes no PARTITION BY", "SELECT k, count(*) AS n FROM s GROUP BY k", "PARTITION BY belongs in SESSION(...) and in ROW_NUMBER() OVER (...)"),
    _phrase(r"\*\s*(EXCEPT|EXCLUDE|EXCEPTION)\b|\*\s*REPLACE\s*\(", "* selects all columns", "SELECT k, v FROM s", "name the columns instead"),
    _phrase(r"\bPIVOT\b|\bUNPIVOT\b", "PIVOT is not supported", "SELECT k, sum(v) FILTER (WHERE t = 'a') AS a FROM s GROUP BY k"),
    _phrase(r"\bINTO\b", "a SELECT is not stored", "CREATE QUERY q AS SELECT v FROM s"),
    _phrase(r"\bFOR\s+(UPDATE|SHARE)\b", "Millrace has no row locks", "SELECT v FROM s"),
    _phrase(r"\bCLUSTER\s+BY\b|\bDISTRIBUTE\s+BY\b|\bSORT\s+BY\b", "a query emits rows in order of arrival", "CREATE QUERY q WITH (order = 'event') AS SELECT v FROM s", "for the order of time"),
    _phrase(r"\bTO\s+(SECOND|MINUTE|HOUR|DAY|MONTH|YEAR)\b", "FLOOR and CEIL take no TO", "SELECT date_trunc('minute', ts) AS m FROM s"),
    # expressions
    _phrase(r"\b(TRY_CAST|SAFE_CAST)\b", "TRY_CAST is not supported", "SELECT cast(t AS bigint) AS n FROM s", "a text that is not a number drops its row, and Millrace counts it"),
    _phrase(r"\b(RLIKE|REGEXP|SIMILAR)\b|!?~\*?", "pattern operators are not supported", "SELECT regexp_like(t, 'a') AS m FROM s"),
    _phrase(r"->>?|#>>?|@>|<@", "Millrace has no JSON type", note="extract the values before you feed the row, or use regexp_substr"),
    _phrase(r"==", "equality is written =", "SELECT v = 1 AS one FROM s"),
    _phrase(r"\bDIV\b", "integers are divided by /", "SELECT v / 2 AS half FROM s"),
    _phrase(r"`", "a name with special characters needs double quotes", 'SELECT v AS "my name" FROM s'),
    _phrase(r"\bARRAY\s*\[|\bSELECT\s+\[", "Millrace has no lists", note="feed one row for each value"),
    _phrase(r"\bAT\s+TIME\s+ZONE\b", "a timestamp is always UTC", "SELECT ts + INTERVAL '2 hours' AS local FROM s"),
)  # fmt: skip

# The first word of a join of another dialect, which the parser reads as an alias.
JOINS: Final = {"asof": "ASOF JOIN", "semi": "SEMI JOIN", "anti": "ANTI JOIN", "temporal": "TEMPORAL JOIN"}

# Words that the grammar has only to refuse them with a reason. Messages never suggest them.
REFUSED: Final = frozenset(("EXCEPT", "INTERSECT", "LIMIT", "OFFSET", "RECURSIVE", "EXISTS"))

_TWO_WORDS: Final = re.compile(r"\w+\W+\w+")
_HIDDEN: Final = re.compile(r"'(?:[^']|'')*'?|\"(?:[^\"]|\"\")*\"?|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
# The distance from an error within which phrases are searched. All phrases except starts of statements are short.
_AROUND: Final = 400


def find_phrase(text: str, at: int) -> tuple[int, str] | None:
    """The phrase of another dialect at which the parser failed: its start, and the sentence with the Millrace form.

    It starts at or before the place, and ends at most a word before it. Text in quotes is skipped.
    """
    shown = _HIDDEN.sub(lambda match: " " * len(match[0]), text)
    start = shown.rfind(";", 0, at) + 1
    end = shown.find(";", at)
    statement = shown[start : end if end >= 0 else len(shown)]
    place = at - start
    for phrase in PHRASES:
        low = (
            0
            if phrase.pattern.pattern.startswith((_START, r"\bCREATE", r"\b(DROP", r"\bALTER"))
            else max(0, place - _AROUND)
        )
        for match in phrase.pattern.finditer(statement, low, place + _AROUND):
            if match.start() > place:
                break
            begin = match.start() + len(match[0]) - len(match[0].lstrip())
            if not _TWO_WORDS.search(statement[min(match.end(), place) : place]):
                return start + begin, phrase.sentence
    return None


def find_join(alias: str) -> str | None:
    """The Millrace form of a join of another dialect whose first word is a table's alias."""
    name = JOINS.get(alias)
    return None if name is None else next(phrase.sentence for phrase in PHRASES if phrase.pattern.match(name))
