"""The console in a browser, in short: who waits for whom, and the screens without a message of the browser.

`make check-console` has the rest (`check_*.py`), and does not skip.
"""


def test_a_silent_feed_turns_its_edges_red_until_it_answers(screen, world):
    screen.open("graph/trams")
    screen.until('[data-id="crossings.union1"]')
    screen.until(".graph .edge.is-held", present=False)
    world.feeds.silent.add("trams")
    # From the union back to the feed that holds it: four arcs, and no other.
    for edge in (
        "crossings.project1>crossings.union1",
        "crossings.filter1>crossings.project1",
        "feed:trams>trams.source",
    ):
        screen.until(f'[data-edge^="{edge}"] .is-held')
    assert screen.count(".graph .edge.is-held") == 4
    assert screen.count('[data-edge^="feed:cars"] .is-held') == 0
    screen.see("silent", '[data-id="feed:trams"]')
    screen.see("1 waiting", ".head")
    screen.page.locator('[data-edge^="feed:trams"] .grip').click(force=True)
    screen.see("crossings.union1 holds \\d+ tuples", ".why-words")
    screen.see("gateway-north of trams is silent", ".why-words")
    screen.see("max_skew", ".graph-panel .try")
    world.feeds.silent.clear()
    screen.until(".graph .edge.is-held", present=False)
    screen.see("flowing", ".head")


def test_the_overview_shows_trouble_as_one_red_word(screen, world):
    screen.open()
    world.feeds.silent.add("trams")
    screen.see("waiting.*crossings", ".trouble")
    assert screen.text("#queries tr.is-bad .state").strip() == "waiting"
    screen.page.get_by_role("link", name="Show in the graph").click()
    screen.until('.is-chosen[data-id="crossings.union1"]')
    world.feeds.silent.clear()
    screen.open("queries")
    screen.until("#queries tr.is-bad", present=False)
