"""Every command of `millrace`: its path, its section of the help, a line about it, an example, and where its code is.

Rule: plain data, so that the overview prints without importing a command. A new command is a row here, a function with
a docstring, and a line in `docs/cli.md`. The commands of changes are made from the table of changes (`verbs.py`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from millrace.cli.change_verbs import VERBS

Options = Literal["own", "http", "tcp"]


class CommandInfo(NamedTuple):
    """`code` is MODULE:FUNCTION below `millrace.cli`, or VERB for the command of a change; `options` says which
    connection options the command takes."""

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


# The code of all commands of changes.
VERB: Final = "verbs"

SECTIONS: Final = ("Server", "Data", "Queries", "Inspect", "Tune", "Offline", "History", "Spark")

GROUPS: Final = (
    GroupInfo("Server", "config", "Check the server's configuration"),
    GroupInfo("Server", "journal", "The journal in a data directory"),
    GroupInfo("Server", "token", "Who may use the server, and for what"),
    GroupInfo("Data", "stream", "Streams that clients feed"),
    GroupInfo("Data", "sink", "Files that receive a query's rows"),
    GroupInfo("Queries", "query", "Running queries"),
    GroupInfo("Inspect", "component", "Connected operators with one scheduler"),
    GroupInfo("Inspect", "operator", "Nodes of the query graph"),
    GroupInfo("Tune", "strategy", "Which operator runs next"),
    GroupInfo("Tune", "break", "Break points in the query graph"),
    GroupInfo("History", "backfill", "Queries over archived streams, on Spark"),
    GroupInfo("Spark", "spark", "Queries live on Spark"),
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
        "backup",
        "backup:backup",
        "Copy a data directory, also while its server runs",
        "millrace backup monday --data-dir data",
        "own",
    ),
    CommandInfo(
        "Server",
        "restore",
        "backup:restore",
        "Make a data directory of a backup",
        "millrace restore monday --data-dir data",
        "own",
    ),
    CommandInfo(
        "Server",
        "token create",
        "token:create",
        "Create a token with roles, or another one for rotation",
        "millrace token create sensors feed:trams --data-dir data -o sensors.token",
        "own",
    ),
    CommandInfo(
        "Server",
        "token list",
        "token:list_",
        "List the tokens: names, roles and expiry",
        "millrace token list --data-dir data",
        "own",
    ),
    CommandInfo(
        "Server",
        "token revoke",
        "token:revoke",
        "Revoke the tokens of a name",
        "millrace token revoke sensors --data-dir data",
        "own",
    ),
    CommandInfo(
        "Server",
        "console",
        "console:console",
        "Open the console in a browser, logged in",
        "millrace console",
    ),
    CommandInfo(
        "Server",
        "standby",
        "standby:standby",
        "Show a server's standbys, or whom it follows, and the lag",
        "millrace standby",
    ),
    CommandInfo(
        "Server",
        "promote",
        "standby:promote",
        "Make a standby the primary",
        "millrace promote --admin 10.0.0.2:7421",
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
    CommandInfo(
        "Data",
        "stream archive",
        "admin:stream_archive",
        "Write the stream's history to complete files now",
        "millrace stream archive door",
    ),
    CommandInfo("Data", "sink list", "admin:sink_list", "List all sinks", "millrace sink list"),
    CommandInfo("Data", "sink show", "admin:sink_show", "Show one sink", "millrace sink show alerts"),
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
    CommandInfo(
        "Queries",
        "query time",
        "times:query_time",
        "Show a query's watermarks and open windows",
        "millrace query time diary",
    ),
    CommandInfo("Queries", "changes", "ledger:changes", "List the applied changes", "millrace changes --last 5"),
    CommandInfo("Queries", "undo", "ledger:undo", "Undo an applied change", "millrace undo 7 --plan"),
    CommandInfo("Inspect", "why", "admin:why", "Say what a query waits for", "millrace why diary"),
    CommandInfo(
        "Inspect",
        "late",
        "late:late",
        "Say which disorder would have kept how many tuples",
        "millrace late door",
    ),
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
        "Offline",
        "run",
        "run:run",
        "Run statements over files, without a server",
        "millrace run shop.sql --events morning.jsonl",
        "own",
    ),
    CommandInfo(
        "Offline",
        "replay",
        "replay:replay",
        "Run a server's past again, perhaps with a change",
        "millrace replay --data-dir data --from '-1 hour' --strategy bfs",
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
    CommandInfo(
        "Spark",
        "spark explain",
        "spark:explain",
        "Show how queries would run on Spark, before anything starts",
        "millrace spark explain talkers.sql",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark run",
        "spark:run",
        "Run queries live on Spark",
        "millrace spark run talkers.sql --input packets=archive:history --checkpoint talkers",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark status",
        "spark:status",
        "Show how far a job on Spark is",
        "millrace spark status talkers",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark verify",
        "spark:verify",
        "Check the commits and files of a job on Spark",
        "millrace spark verify talkers",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark sql",
        "spark:sql",
        "Change the queries of a job on Spark while it runs",
        'millrace spark sql talkers "DROP QUERY large"',
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark strategy",
        "spark:strategy",
        "Run a query of a job on Spark by another strategy",
        "millrace spark strategy talkers traffic chain",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark pause",
        "spark:pause",
        "Pause a query of a job on Spark",
        "millrace spark pause talkers traffic",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark resume",
        "spark:resume",
        "Resume a query of a job on Spark",
        "millrace spark resume talkers traffic",
        "own",
    ),
    CommandInfo(
        "Spark",
        "spark why",
        "spark:why",
        "Say why a query of a job on Spark emits nothing",
        "millrace spark why talkers traffic",
        "own",
    ),
    *(CommandInfo(verb["section"], verb["path"], VERB, verb["summary"], verb["example"]) for verb in VERBS),
)
