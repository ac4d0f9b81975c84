"""Every screen against a real server: its content, its changes, and the findings of axe-core."""

import json
import re

import pytest

from tests.console import browser, measures
from tests.console.world import World, many
from tests.patience import HANG_SECONDS

SCREENS = {
    "": "Queries",
    "graph/trams": "crossings.union1",
    "graph/trams?at=conflicts.join1": "Live rows",
    "graph/trams?view=queries": "operators",
    "queries": "crossings",
    "queries/crossings": "Upstream",
    "queries/crossings/rows": "received",
    "queries/speeds/chart": "points",
    "queries/speeds/time": "closed window",
    "queries/crossings/plan": "Measured",
    "streams": "trams",
    "streams/cars": "induction-loops",
    "streams/cars/rows": "speed",
    "streams/cars/late": "Late ledger",
    "sinks": "speeding",
    "sinks/speeding": "Freshness|Dropped",
    "components": "trams",
    "components/trams": "DFS-IWP",
    "components/trams/operators": "crossings.union1",
    "operators/speeds.aggregate1": "Inputs|INPUTS",
    "editor": "Plan",
    "editor/speeds": "Running now",
    "history": "Journal",
    "changes": "created stream",
    "log": "Level",
}


@pytest.fixture(params=["light", "dark"])
def schemed(request, chromium, world):
    with browser.screen(chromium, world.url, color_scheme=request.param) as page:
        yield page


def test_every_screen_is_accessible_and_the_browser_reports_nothing(schemed):
    """axe-core finds nothing in light and dark."""
    axe = browser.AXE.read_text()
    schemed.open()
    schemed.page.evaluate(axe)
    for place, words in SCREENS.items():
        schemed.open(place)
        schemed.see(words, "main")
        found = schemed.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
        problems = [
            f"{place}: {one['id']}: {node['target']} {node['failureSummary']}"
            for one in found["violations"]
            for node in one["nodes"]
        ]
        assert problems == []
    schemed.quiet()


def test_a_phone_shows_every_screen_without_scrolling_sideways(chromium, world):
    with browser.screen(chromium, world.url, viewport={"width": 390, "height": 844}) as phone:
        for place, words in SCREENS.items():
            phone.open(place)
            phone.see(words, "main")
            wide = phone.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, place
        phone.quiet()


def test_text_may_be_twice_as_large(chromium, world):
    with browser.screen(chromium, world.url) as page:
        page.open("queries/crossings")
        small = page.page.locator("h1").bounding_box()["height"]
        page.page.evaluate("() => { document.documentElement.style.fontSize = '200%' }")
        assert page.page.locator("h1").bounding_box()["height"] > 1.8 * small
        page.quiet()


def test_the_keyboard_follows_the_arcs(screen):
    screen.open("graph/trams")
    screen.page.locator('[data-id="trams.source"]').focus()
    places = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowLeft", "ArrowLeft"):
        screen.page.keyboard.press(key)
        places.append(screen.page.evaluate("() => document.activeElement.dataset.id"))
    assert places[-1] == "feed:trams"
    assert places[1] in ("crossings.project1", "conflicts.project1")
    screen.page.locator('[data-id="crossings.union1"]').focus()
    screen.page.keyboard.press("m")
    screen.see("Set a break point", '[role="menu"]')
    screen.page.keyboard.press("Escape")
    assert screen.page.evaluate("() => document.activeElement.dataset.id") == "crossings.union1"
    screen.page.keyboard.press("Enter")
    screen.see("Live rows of its output", ".graph-panel")


def test_a_click_shows_its_command_and_its_call(screen, world):
    screen.open("graph/trams?at=conflicts.project1")
    screen.page.get_by_role("button", name="Actions for").click()
    screen.click("Set a break point", role="menuitem")
    screen.see("millrace break set conflicts.project1", "dialog")
    screen.see("-X PUT http://.*/api/v1/operators/conflicts.project1/break", "dialog")
    screen.see("state table", "dialog .plan")
    screen.click("Apply")
    screen.see("break set|break point", ".notices")
    assert world.server.json("operator", "show", "conflicts.project1")["break"]
    screen.open("changes")
    screen.page.get_by_role("button", name="Undo").first.click()
    screen.click("Apply")
    screen.see("undone by")
    assert not world.server.json("operator", "show", "conflicts.project1")["break"]


def test_a_strategy_is_tried_and_reverted(screen, world):
    screen.open("components/trams")
    screen.try_strategy("bfs", seconds=1, condition="p99 < 100s")
    screen.see("reverted", ".trial")
    screen.see("Latency p99", ".measures")
    assert world.server.json("strategy", "show", "trams")["strategy"] == "dfs"
    screen.page.get_by_role("button", name="Keep bfs").click()
    screen.see("millrace strategy set trams bfs", "dialog")
    screen.click("Apply")
    screen.page.get_by_role("button", name="Revert to dfs").wait_for()
    assert world.server.json("strategy", "show", "trams")["strategy"] == "bfs"
    assert world.server.millrace("strategy", "set", "trams", "dfs").returncode == 0


def test_rows_that_failed_are_counted_where_a_person_looks(screen, world):
    """They are not kept, and each screen says so."""
    broken = "CREATE QUERY broken AS SELECT line, 100 / (line - line) AS x FROM tickets"
    assert world.server.millrace("sql", broken).returncode == 0
    screen.open("queries/broken")
    screen.see(r"broken.project1: [\d,]+ rows? could not be computed. division by zero", ".panel")
    screen.see("It is not kept; the log has the counts", ".panel")
    screen.see("rows were dropped.*operator=broken.project1 reason=division by zero", "#log")
    screen.open("queries/broken/rows")
    screen.see("could not be computed, and are not among these", "main")
    screen.open("graph/tickets")
    screen.see(r"[\d,]+ rows failed", '[data-id="broken.project1"]')
    screen.open("operators/broken.project1")
    screen.see("division by zero. The rows are dropped and counted", ".failure")
    assert world.server.millrace("query", "drop", "broken").returncode == 0


def test_a_query_is_replaced_from_the_editor(screen, world):
    screen.open("editor/sales")
    screen.see("nothing changes", ".editor-plan")
    screen.write("CREATE OR REPLACE QUERY sales AS SELECT line, count(*) AS tickets FROM tickts GROUP BY line")
    screen.see("did you mean tickets", ".diagnostic")
    assert screen.page.locator("#apply").is_disabled()
    screen.until(".cm-lintRange-error")
    screen.write(
        "CREATE OR REPLACE QUERY sales AS SELECT line, count(*) AS tickets, max(cents) AS dearest "
        "FROM tickets GROUP BY line",
    )
    screen.see("starts empty", ".plan")
    screen.see(r"aggregate.*per tuple, measured on [\d,]+ tuples", ".plan li")
    screen.click("Apply")
    screen.see("Applied: create query sales", ".success")
    fields = world.server.json("query", "show", "sales")["fields"]
    assert [name for name, *_ in fields] == ["line", "tickets", "dearest"]


def test_the_editor_previews_what_is_written(screen, world):
    screen.open("editor")
    screen.write("CREATE QUERY fast AS SELECT road, speed * 2 AS twice FROM cars WHERE speed > 30")
    screen.see("made of the newest \\d+ tuples of cars", "#preview")
    screen.see("twice", "#preview thead")
    screen.until("#preview tbody tr")
    screen.see("per tuple, 0 tuples .* in state, measured on \\d+ tuples", ".price")
    screen.write("CREATE QUERY fast AS SELECT road, speed / 0 AS never FROM cars")
    screen.see("could not be computed: division by zero", "#preview")
    screen.write("CREATE QUERY fast AS SELECT road, speed FROM")
    screen.see("This was the text before", "#preview")
    assert "fast" not in [one["name"] for one in world.server.json("query", "list")]


def test_late_tuples_are_dots_on_the_axis_of_time(screen):
    screen.open("queries/speeds/time")
    screen.until(".axis circle.late")
    screen.until(".axis path.mark")
    screen.see("would have kept|were on time", ".panel")


def test_windows_are_boxes_on_the_axis_of_time(screen):
    screen.open("queries/speeds/time")
    screen.until(".axis rect.open")
    screen.until(".axis rect.closed")
    screen.see("speeds.aggregate1.*2.0 s.*2.0 s", "#windows tbody tr")
    screen.open("queries/crossings/time")
    screen.until(".axis path.mark")
    assert screen.count(".axis .windows") == 0


def test_the_editor_completes(screen):
    screen.open("editor")
    screen.write("SELECT * FROM tra")
    screen.page.keyboard.press("Control+Space")
    screen.see("trams", ".cm-tooltip-autocomplete")


def test_a_change_by_someone_else_is_shown(screen, world):
    screen.open("queries/speeds")
    screen.click("Pause")
    screen.see("millrace query pause speeds", "dialog")
    screen.until("dialog .plan-none, dialog .plan")
    assert world.server.millrace("query", "pause", "speeds", "--reason", "by hand").returncode == 0
    screen.see("Apply…", ".why")  # the page has such a button now too
    screen.click("Apply")
    screen.see("Changed by someone else", "dialog .conflict")
    screen.see("by hand", "dialog .difference")
    screen.click("Cancel")
    assert world.server.millrace("query", "resume", "speeds").returncode == 0
    screen.messages = [message for message in screen.messages if not re.search(r"status of (409|412)", message)]


def test_a_trial_of_a_component_that_someone_else_changed_is_not_started(screen, world):
    screen.open("components/trams")
    screen.page.locator("#strategy").select_option("bfs")
    screen.see("rows would change", "main")
    screen.until("button:not([disabled]):has-text('Try bfs')")
    assert world.server.millrace("component", "weight", "trams", "3").returncode == 0
    screen.click("Try bfs")
    screen.see("Changed by someone else", ".conflict")
    screen.see(r"- weight: 1\s+\+ weight: 3", ".difference")
    assert world.server.millrace("component", "weight", "trams", "1").returncode == 0
    screen.messages = [message for message in screen.messages if "status of 412" not in message]


def test_a_wrong_token_is_refused(chromium, tmp_path):
    with World(tmp_path, guarded=True) as world, browser.screen(chromium, world.url) as page:
        page.page.goto(page.url)
        page.see("requires a token", ".login")
        page.quiet()
        page.page.get_by_label("Token").fill("mr_wrong")
        page.click("Log in")
        page.see("does not know this token", ".login")
        page.page.get_by_label("Token").fill(world.token)
        page.click("Log in")
        page.see("live", ".status")
        page.see("crossings", "#queries")
        page.click("Log out")
        page.see("requires a token", ".login")
        page.quiet("status of 401")


def test_a_link_logs_in_once(chromium, tmp_path):
    with World(tmp_path, guarded=True) as world, browser.screen(chromium, world.url) as page:
        done = world.command("console", "--no-open")
        link = re.search(r"http://\S+/console/login\?code=\S+", done.stdout + done.stderr)
        assert link
        page.page.goto(link[0])
        page.see("live", ".status")
        assert "code=" not in page.page.url
        page.quiet()


def test_a_restart_of_the_server_is_noticed(chromium, tmp_path):
    with World(tmp_path) as world, browser.screen(chromium, world.url) as page:
        page.open("queries")
        page.see("crossings", "#queries")
        world.restart(page.see)
        page.see("live", ".status")
        page.until(".notice.is-bad", present=False)
        page.see("crossings", "#queries")
        page.quiet(
            "ERR_CONNECTION_REFUSED",
            "ERR_INCOMPLETE_CHUNKED",
            "ERR_CONNECTION_RESET",
            "status of 503",
            "ERR_EMPTY_RESPONSE",
        )


def test_three_hundred_operators_stay_usable(chromium, tmp_path):
    with World(tmp_path, sql=many(100), streams=("trams",)) as world, browser.screen(chromium, world.url) as page:
        page.open("graph")
        page.see("301 operators|300 operators|302 operators", ".head")
        page.until('[data-id="query:q042"]')  # folded at first
        page.page.locator('[data-id="query:q042"]').click()
        page.click("Unfold")
        page.until('[data-id="q042.filter1"]')
        page.page.locator('[data-id="q042.filter1"]').click()
        page.page.get_by_role("combobox", name="Show").select_option("path")
        page.until('[data-id="query:q041"]', present=False)
        page.page.get_by_role("combobox", name="Show").select_option("all")
        page.page.get_by_role("combobox", name="Boxes").select_option("operators")
        page.until('[data-id="q099.filter1"]')
        assert page.count(".node") > 300
        # It still answers: a click, while all numbers change.
        page.page.locator('[data-id="q042.filter1"]').click()
        page.see("q042.filter1", ".graph-panel")
        page.quiet()


def test_fifty_thousand_rows_a_second_do_not_freeze_a_tail(chromium, tmp_path):
    sql = (
        "CREATE STREAM tickets (line BIGINT, cents BIGINT); CREATE QUERY all_tickets AS SELECT line, cents FROM tickets"
    )
    with (
        World(tmp_path, sql=sql, streams=("tickets",), rows=2_500) as world,
        browser.screen(chromium, world.url) as page,
    ):
        page.open("queries/all_tickets/rows")
        page.until("table.rows tbody tr")
        page.page.wait_for_function(
            "() => Number(/([\\d,]+) rows since/.exec(document.body.innerText)?.[1].replaceAll(',', '')) > 200000",
            timeout=HANG_SECONDS * 1_000,
        )
        rows = page.count("table.rows tbody tr")
        assert 0 < rows <= 60
        page.see(r"[1-9][\d,]+ of them not shown", ".tail")
        page.page.locator(".tail").get_by_role("button", name="Pause").click()
        page.see("paused", ".tail")
        page.page.locator(".tail").get_by_role("button", name="Resume").click()
        page.page.get_by_label("Where").fill("line = 7")
        page.click("Filter")
        page.page.wait_for_function(
            "() => { const cells = [...document.querySelectorAll('table.rows tbody td:nth-child(3)')];"
            " return cells.length > 0 && cells.every(cell => cell.textContent === '7') }"
        )
        page.quiet()


def test_the_measures_measure(chromium, monkeypatch):
    """A small one of each: `make measure-console` has the figures."""
    monkeypatch.setattr(measures, "SETTLE_SECONDS", 0.5)
    for line in measures.frames(chromium, 0.5):
        assert re.search(r"tail of [\d,]+ rows a second: [\d.]+ frames a second, .* long tasks", line)
    lines = list(measures.consoles(1, 1, {}, measures.PAGES))
    assert [line.partition(":")[0] for line in lines] == ["0 consoles", "1 consoles", "10 consoles"]


def test_the_files_are_what_the_server_announces(world, chromium):
    """The policy of the document, and no address of another host in a module of ours."""
    with browser.screen(chromium, world.url) as page:
        answer = page.page.goto(page.url)
        policy = answer.headers["content-security-policy"]
        assert policy == (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        )
        requested = []
        page.page.on("request", lambda request: requested.append(request.url))
        page.open("editor")
        page.until(".cm-content")
        assert requested
        assert all(url.startswith(world.url) for url in requested), json.dumps(requested)
