"""Every command of `millrace`: its path, its section of the help, a line about it, an example, and where its code is.

Rule: plain data, so that the overview prints without importing a command. A new command is a row here, a function with
a docstring, and a line in `docs/cli.md`.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Options = Literal["own", "http", "tcp"]


class CommandInfo(NamedTuple):
    """`code` is MODULE:FUNCTION below `millrace.cli`; `options` says which connection options the command takes."""

    section: str
    path: str
    code: str
    summary: str
    example: str
    options: Options = "http"


class GroupInfo(NamedTuple):
    section: str
    name: str
    summary: str


SECTIONS: Final = ("Server", "Data", "Queries", "Inspect", "Tune", "Offline", "History")

GROUPS: Final = (
    GroupInfo("Server", "config", "Check the server's configuration"),
    GroupInfo("Server", "journal", "The journal in a data directory"),
    GroupInfo("Data", "stream", "Streams that clients feed"),
    GroupInfo("Data", "sink", "Files that receive a query's rows"),
    GroupInfo("Queries", "query", "Running queries"),
    GroupInfo("Inspect", "component", "Connected operators with one scheduler"),
    GroupInfo("Inspect", "operator", "Nodes of the query graph"),
    GroupInfo("Tune", "strategy", "Which operator runs next"),
    GroupInfo("Tune", "break", "Break points in the query graph"),
    GroupInfo("History", "backfill", "Queries over archived streams, on Spark"),
)

COMMANDS: Final = (
    CommandInfo("Server", "serve", "serving:serve", "Run the server", "millrace serve --data-dir data", "own"),
    CommandInfo(
        "Server",
        "config check",
        "serving:check",
        "Print the effective configuration, or its problems",
        "millrace config check --config millrace.toml",
        "own",
    ),
    CommandInfo(
        "Server",
        "journal check",
        "journal:check",
        "Read every record and report damage",
        "millrace journal check --data-dir data",
        "own",
    ),
    CommandInfo(
        "Server",
        "journal show",
        "journal:show_records",
        "Print a line per record",
        "millrace journal show --data-dir data --from 1200 --limit 10",
        "own",
    ),
    CommandInfo(
        "Server",
        "journal trim",
        "journal:trim",
        "Remove old records while no server runs",
        "millrace journal trim --data-dir data --before 1200",
        "own",
    ),
    CommandInfo(
        "Server",
        "support-bundle",
        "bundle:support_bundle",
        "Collect diagnostics in one file, without rows or secrets",
        "millrace support-bundle -o support.tar.gz",
    ),
    CommandInfo(
        "Server",
        "completion",
        "completion:completion",
        "Print a completion script for bash, zsh or fish",
        "millrace completion bash > ~/.millrace-completion",
        "own",
    ),
    CommandInfo("Server", "version", "version:version", "Print the version", "millrace version --json", "own"),
    CommandInfo(
        "Data",
        "feed",
        "streaming:feed",
        "Feed a stream from a file or standard input",
        "millrace feed door visitors.csv",
        "tcp",
    ),
    CommandInfo(
        "Data", "tail", "streaming:tail", "Print a query's rows as they arrive", "millrace tail diary --from 0", "tcp"
    ),
    CommandInfo("Data", "stream list", "admin:stream_list", "List all streams", "millrace stream list"),
    CommandInfo("Data", "stream show", "admin:stream_show", "Show one stream", "millrace stream show door"),
    CommandInfo("Data", "stream drop", "admin:stream_drop", "Drop a stream", "millrace stream drop door"),
    CommandInfo(
        "Data",
        "stream archive",
        "admin:stream_archive",
        "Write the stream's history to complete files now",
        "millrace stream archive door",
    ),
    CommandInfo("Data", "sink list", "admin:sink_list", "List all sinks", "millrace sink list"),
    CommandInfo("Data", "sink show", "admin:sink_show", "Show one sink", "millrace sink show alerts"),
    CommandInfo("Data", "sink drop", "admin:sink_drop", "Drop a sink", "millrace sink drop alerts"),
    CommandInfo(
        "Queries",
        "apply",
        "admin:apply",
        "Apply a file of SQL statements, all or none",
        "millrace apply shop.sql --plan",
    ),
    CommandInfo(
        "Queries",
        "diff",
        "admin:diff",
        "Compare a file of SQL definitions with the server",
        "millrace diff shop.sql",
    ),
    CommandInfo("Queries", "sql", "admin:sql", "Execute SQL statements", 'millrace sql "DROP QUERY diary"'),
    CommandInfo("Queries", "explain", "admin:explain", "Explain a running query", "millrace explain diary --analyze"),
    CommandInfo("Queries", "export", "admin:export", "Print all definitions as SQL", "millrace export > backup.sql"),
    CommandInfo("Queries", "query list", "admin:query_list", "List all queries", "millrace query list"),
    CommandInfo("Queries", "query show", "admin:query_show", "Show one query", "millrace query show diary"),
    CommandInfo("Queries", "query drop", "admin:query_drop", "Drop a query", "millrace query drop diary"),
    CommandInfo(
        "Queries",
        "query pause",
        "admin:query_pause",
        "Pause a query; skipped tuples are counted",
        "millrace query pause diary --reason maintenance",
    ),
    CommandInfo(
        "Queries",
        "query resume",
        "admin:query_resume",
        "Resume a paused query at the current end of its input",
        "millrace query resume diary",
    ),
    CommandInfo(
        "Queries",
        "query rename",
        "admin:query_rename",
        "Rename a query; readers and sequence numbers continue",
        "millrace query rename diary journal",
    ),
    CommandInfo(
        "Queries",
        "query unshare",
        "admin:query_unshare",
        "Make separate copies of a query's shared operators",
        "millrace query unshare diary",
    ),
    CommandInfo("Queries", "changes", "ledger:changes", "List the applied changes", "millrace changes --last 5"),
    CommandInfo("Queries", "undo", "ledger:undo", "Undo an applied change", "millrace undo 7 --plan"),
    CommandInfo("Inspect", "why", "admin:why", "Say what a query waits for", "millrace why diary"),
    CommandInfo("Inspect", "top", "top:top", "Watch rates, queues and waiting operators", "millrace top --once"),
    CommandInfo("Inspect", "doctor", "doctor:doctor", "Check the server and advise", "millrace doctor"),
    CommandInfo("Inspect", "component list", "admin:component_list", "List all components", "millrace component list"),
    CommandInfo(
        "Inspect",
        "component show",
        "admin:component_show",
        "Show one component, or its graph as a drawing",
        "millrace component show door --format mermaid",
    ),
    CommandInfo(
        "Inspect",
        "component table",
        "admin:component_table",
        "Print a component's state table",
        "millrace component table door",
    ),
    CommandInfo("Inspect", "operator list", "admin:operator_list", "List all operators", "millrace operator list"),
    CommandInfo(
        "Inspect", "operator show", "admin:operator_show", "Show one operator", "millrace operator show diary.union1"
    ),
    CommandInfo(
        "Tune",
        "strategy show",
        "admin:strategy_show",
        "Show the strategy of a component and its operators",
        "millrace strategy show door",
    ),
    CommandInfo(
        "Tune",
        "strategy set",
        "admin:strategy_set",
        "Set the strategy of a component or one operator",
        "millrace strategy set door bfs",
    ),
    CommandInfo(
        "Tune",
        "strategy try",
        "trial:strategy_try",
        "Try a strategy for a while, then revert or keep it",
        "millrace strategy try door bfs --for 30s --revert-if 'p99 > 2x'",
    ),
    CommandInfo(
        "Tune",
        "strategy trial",
        "trial:strategy_trial",
        "Show a running or finished trial",
        "millrace strategy trial door",
    ),
    CommandInfo(
        "Tune",
        "break set",
        "admin:break_set",
        "Set a break point at an operator's output",
        "millrace break set diary.filter1",
    ),
    CommandInfo(
        "Tune", "break unset", "admin:break_unset", "Unset a break point", "millrace break unset diary.filter1"
    ),
    CommandInfo(
        "Tune",
        "component weight",
        "admin:component_weight",
        "Set a component's share of the processor",
        "millrace component weight door 2",
    ),
    CommandInfo(
        "Tune",
        "query order",
        "admin:query_order",
        "Change how a query's joins order their rows",
        "millrace query order pairs sync",
    ),
    CommandInfo(
        "Tune",
        "operator queue",
        "admin:operator_queue",
        "Change the queue of an operator's input",
        "millrace operator queue prices.filter1 inplace",
    ),
    CommandInfo(
        "Tune",
        "operator insert",
        "admin:operator_insert",
        "Insert a filter or a sample in front of an operator",
        "millrace operator insert pairs.join1 --input 0 --where 'mod(src, 10) = 0'",
    ),
    CommandInfo(
        "Tune",
        "operator remove",
        "admin:operator_remove",
        "Remove a filter or a sample",
        "millrace operator remove pairs.filter2",
    ),
    CommandInfo(
        "Tune",
        "operator replace",
        "admin:operator_replace",
        "Replace a filter or a sample",
        "millrace operator replace pairs.filter2 --sample 0.1",
    ),
    CommandInfo(
        "Offline",
        "run",
        "run:run",
        "Run statements over files, without a server",
        "millrace run shop.sql --events morning.jsonl",
        "own",
    ),
    CommandInfo(
        "History",
        "backfill start",
        "backfill:start",
        "Compute a query's rows over history",
        "millrace backfill start talkers --out rows",
    ),
    CommandInfo(
        "History", "backfill status", "backfill:status", "Show how far a backfill is", "millrace backfill status rows"
    ),
    CommandInfo(
        "History",
        "backfill verify",
        "backfill:verify",
        "Compare a backfill's rows with the server's",
        "millrace backfill verify talkers --against rows",
    ),
)
