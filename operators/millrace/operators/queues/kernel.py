"""The loops of update queues: pages and their empty locations, key cells in line, random shedding.

Pages (UPS, section 7.1). A location is a number; page p has the locations p * slots and up. `books` holds per page its
first empty location, how many of its locations are in use, and its neighbours in the empty-locations pool, the list of
pages in use that have room. `following` links the empty locations of a page.

Key cells (figure 15). Per key, `cells` holds the numbers named below; cells that have an update in the queue are in
line, first to be served first. `line` holds what concerns the queue as a whole. -1 is no cell, page or location.
"""

import cython

# -- pages -------------------------------------------------------------------------------------------------------------

# The books of a queue's pages: first the numbers of the pool (the first page with room, pages without owner, pages in
# use, pages given back since ever), then the numbers of each page. FREE_PAGE is none of the page's own: together they
# are the stack of the pages without owner.
ROOM = cython.declare(cython.int, 0)
FREE = cython.declare(cython.int, 1)
TAKEN = cython.declare(cython.int, 2)
RETURNED = cython.declare(cython.int, 3)
POOL = cython.declare(cython.int, 4)
EMPTY = cython.declare(cython.int, 0)
USED = cython.declare(cython.int, 1)
BEFORE = cython.declare(cython.int, 2)
AFTER = cython.declare(cython.int, 3)
FREE_PAGE = cython.declare(cython.int, 4)
PAGE = cython.declare(cython.int, 5)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def pick(slots: cython.Py_ssize_t, books: cython.longlong[:], following: cython.int[:]) -> cython.longlong:
    """An empty location (MemAdd): of a page in use if one has room, else of one from the pool; -1 if that is empty."""
    j: cython.Py_ssize_t
    page: cython.longlong = books[ROOM]
    at: cython.longlong
    location: cython.longlong
    if page < 0:
        if books[FREE] == 0:
            return -1
        books[FREE] -= 1
        books[TAKEN] += 1
        page = books[POOL + books[FREE] * PAGE + FREE_PAGE]
        at = POOL + page * PAGE
        for j in range(slots - 1):
            following[page * slots + j] = cython.cast(cython.int, page * slots + j + 1)
        following[page * slots + slots - 1] = -1
        books[at + EMPTY] = page * slots
        books[at + USED] = 0
        books[at + BEFORE] = -1
        books[at + AFTER] = -1
        books[ROOM] = page
    at = POOL + page * PAGE
    location = books[at + EMPTY]
    books[at + EMPTY] = following[location]
    books[at + USED] += 1
    if books[at + EMPTY] < 0:
        books[ROOM] = books[at + AFTER]
        if books[ROOM] >= 0:
            books[POOL + books[ROOM] * PAGE + BEFORE] = -1
    return location


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_back(
    location: cython.longlong, slots: cython.Py_ssize_t, books: cython.longlong[:], following: cython.int[:]
) -> cython.void:
    """Return a location (MemRem). A page whose last location comes back returns to the pool at once."""
    page: cython.longlong = location // slots
    at: cython.longlong = POOL + page * PAGE
    before: cython.longlong
    after: cython.longlong
    if books[at + EMPTY] < 0:
        # It was full: now it has room, and is the first to be filled again.
        after = books[ROOM]
        books[at + BEFORE] = -1
        books[at + AFTER] = after
        if after >= 0:
            books[POOL + after * PAGE + BEFORE] = page
        books[ROOM] = page
    following[location] = cython.cast(cython.int, books[at + EMPTY])
    books[at + EMPTY] = location
    books[at + USED] -= 1
    if books[at + USED] == 0:
        before = books[at + BEFORE]
        after = books[at + AFTER]
        if before >= 0:
            books[POOL + before * PAGE + AFTER] = after
        else:
            books[ROOM] = after
        if after >= 0:
            books[POOL + after * PAGE + BEFORE] = before
        books[POOL + books[FREE] * PAGE + FREE_PAGE] = page
        books[FREE] += 1
        books[TAKEN] -= 1
        books[RETURNED] += 1


def allocate(
    found: cython.longlong[:], slots: cython.Py_ssize_t, books: cython.longlong[:], following: cython.int[:]
) -> cython.Py_ssize_t:
    """Fill `found` with empty locations; returns how many were found before the pool was empty."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        found, books, following = memoryview(found), memoryview(books), memoryview(following)
    for i in range(found.shape[0]):
        found[i] = pick(slots, books, following)
        if found[i] < 0:
            return i
    return found.shape[0]


def release(
    locations: cython.const[cython.longlong][:],
    slots: cython.Py_ssize_t,
    books: cython.longlong[:],
    following: cython.int[:],
) -> None:
    """Return locations."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        locations, books, following = memoryview(locations), memoryview(books), memoryview(following)
    for i in range(locations.shape[0]):
        put_back(locations[i], slots, books, following)


# -- key cells ---------------------------------------------------------------------------------------------------------

# Numbers of a key cell. LOCATION: where its update lies, -1 if it has none, -2 while it is being placed. SINCE: arrival
# of the first update since it was last served. NEWEST: the newest event time of all its updates. LAST: arrival of its
# last update, and GAP a moving mean of the time between two (1 / u_k). AHEAD and BEHIND: its neighbours in line.
# WRITER: the row of the batch at hand that is its newest. SHOWN: until when the application has seen an older result.
LOCATION = cython.declare(cython.int, 0)
SINCE = cython.declare(cython.int, 1)
NEWEST = cython.declare(cython.int, 2)
LAST = cython.declare(cython.int, 3)
GAP = cython.declare(cython.int, 4)
AHEAD = cython.declare(cython.int, 5)
BEHIND = cython.declare(cython.int, 6)
WRITER = cython.declare(cython.int, 7)
SHOWN = cython.declare(cython.int, 8)
CELL = cython.declare(cython.int, 9)

# Numbers of the line, then two histograms: how long updates waited in the queue, and until they were shown. After them
# CUTS, the share of recent services that went to keys that cut the line, of WHOLE.
FIRST = cython.declare(cython.int, 0)
END = cython.declare(cython.int, 1)
COUNT = cython.declare(cython.int, 2)
SUPERSEDED = cython.declare(cython.int, 3)
HISTOGRAMS = cython.declare(cython.int, 4)
BUCKETS = cython.declare(cython.int, 64)
CUTS = cython.declare(cython.int, 132)
WHOLE = cython.declare(cython.longlong, 1 << 30)

FIFO = cython.declare(cython.int, 0)
INPLACE = cython.declare(cython.int, 1)
LINECUTTING = cython.declare(cython.int, 2)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def bucket(value: cython.longlong) -> cython.Py_ssize_t:
    """The number of binary digits of a duration."""
    digits: cython.Py_ssize_t = 0
    while value > 0:
        value >>= 1
        digits += 1
    return digits


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def leave_cell(cells: cython.longlong[:], line: cython.longlong[:], at: cython.Py_ssize_t) -> cython.void:
    """Take a cell out of line."""
    ahead: cython.longlong = cells[at + AHEAD]
    behind: cython.longlong = cells[at + BEHIND]
    if ahead >= 0:
        cells[ahead * CELL + BEHIND] = behind
    else:
        line[FIRST] = behind
    if behind >= 0:
        cells[behind * CELL + AHEAD] = ahead
    else:
        line[END] = ahead


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def update(
    cell: cython.longlong,
    ts: cython.longlong,
    arrival: cython.longlong,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    policy: cython.int,
    cost: cython.double,
) -> cython.int:
    """Let a tuple update its key's cell (section 5.2, 5.3).

    Returns 1 if the cell has got in line and wants a location, 0 if it stood there already, and -1 if the tuple is
    older than an earlier row of its key, and so superseded at once.
    """
    at: cython.Py_ssize_t = cell * CELL
    gap: cython.longlong
    entered: cython.int
    free: cython.double
    needed: cython.double
    cuts: cython.bint
    if ts < cells[at + NEWEST]:
        line[SUPERSEDED] += 1
        return -1
    cells[at + NEWEST] = ts
    if cells[at + GAP] == -2:
        cells[at + GAP] = -1  # the first update of this key: nothing is known of its rate
    else:
        gap = arrival - cells[at + LAST]
        if gap < 0:
            gap = 0
        cells[at + GAP] = gap if cells[at + GAP] < 0 else (7 * cells[at + GAP] + gap) >> 3
    cells[at + LAST] = arrival
    # Section 5.3: u_k < 1 / (c * n), less what keys that cut the line have taken of late. n counts the update being
    # served too. Rates and lengths are known only roughly: with these means over eight updates, 2.5 is the least factor
    # with which no measured load and mix of rates is worse than IN-PLACE (docs/decisions/update-queues.md).
    free = 1.0 - cython.cast(cython.double, line[CUTS]) / WHOLE
    needed = 2.5 * cost * (line[COUNT] + 1)
    cuts = policy == LINECUTTING and cost > 0 and cells[at + GAP] > 0 and cells[at + GAP] * free > needed
    entered = cells[at + LOCATION] == -1
    if entered:
        cells[at + LOCATION] = -2
        cells[at + SINCE] = arrival
        line[COUNT] += 1
    else:
        line[SUPERSEDED] += 1
        if not (policy == FIFO and line[END] != cell) and not (cuts and line[FIRST] != cell):
            return 0  # it keeps its place
        leave_cell(cells, line, at)
    if cuts:
        line[CUTS] += WHOLE // (64 + line[COUNT])
        cells[at + AHEAD] = -1
        cells[at + BEHIND] = line[FIRST]
        if line[FIRST] >= 0:
            cells[line[FIRST] * CELL + AHEAD] = cell
        else:
            line[END] = cell
        line[FIRST] = cell
    else:
        cells[at + AHEAD] = line[END]
        cells[at + BEHIND] = -1
        if line[END] >= 0:
            cells[line[END] * CELL + BEHIND] = cell
        else:
            line[FIRST] = cell
        line[END] = cell
    return entered


def enqueue(
    slots: cython.const[cython.longlong][:],
    ts: cython.const[cython.longlong][:],
    arrival: cython.const[cython.longlong][:],
    cells: cython.longlong[:],
    line: cython.longlong[:],
    policy: cython.int,
    cost: cython.double,
    entering: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Let each row update its key's cell; `cost` is what serving one takes.

    Cells that get in line stand in `entering`, in order; says how many. They still want a location.
    """
    i: cython.Py_ssize_t
    outcome: cython.int
    entered: cython.Py_ssize_t = 0
    if not cython.compiled:
        slots, ts, arrival = memoryview(slots), memoryview(ts), memoryview(arrival)
        cells, line, entering = memoryview(cells), memoryview(line), memoryview(entering)
    for i in range(slots.shape[0]):
        outcome = update(slots[i], ts[i], arrival[i], cells, line, policy, cost)
        if outcome >= 0:
            cells[slots[i] * CELL + WRITER] = i
            if outcome:
                entering[entered] = slots[i]
                entered += 1
    return entered


def enqueue_one(
    cell: cython.longlong,
    ts: cython.longlong,
    arrival: cython.longlong,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    policy: cython.int,
    cost: cython.double,
    page_slots: cython.Py_ssize_t,
    books: cython.longlong[:],
    following: cython.int[:],
) -> cython.longlong:
    """The same for a single tuple; where it belongs, or -1 if it is superseded.

    Returns -2, and has changed nothing, if there is no empty location.
    """
    at: cython.Py_ssize_t
    if not cython.compiled:
        cells, line, books, following = memoryview(cells), memoryview(line), memoryview(books), memoryview(following)
    if books[ROOM] < 0 and books[FREE] == 0:
        return -2
    at = cell * CELL
    outcome: cython.int = update(cell, ts, arrival, cells, line, policy, cost)
    if outcome < 0:
        return -1
    if outcome:
        cells[at + LOCATION] = pick(page_slots, books, following)
    return cells[at + LOCATION]


def place(
    entering: cython.const[cython.longlong][:], locations: cython.const[cython.longlong][:], cells: cython.longlong[:]
) -> None:
    """Assign locations to the cells that have got in line."""
    i: cython.Py_ssize_t
    if not cython.compiled:
        entering, locations, cells = memoryview(entering), memoryview(locations), memoryview(cells)
    for i in range(entering.shape[0]):
        cells[entering[i] * CELL + LOCATION] = locations[i]


def newest(
    slots: cython.const[cython.longlong][:],
    cells: cython.longlong[:],
    rows: cython.longlong[:],
    locations: cython.longlong[:],
) -> cython.Py_ssize_t:
    """The rows that are their key's newest, and where each belongs; says how many."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    if not cython.compiled:
        slots, cells = memoryview(slots), memoryview(cells)
        rows, locations = memoryview(rows), memoryview(locations)
    for i in range(slots.shape[0]):
        at = slots[i] * CELL
        if cells[at + WRITER] == i:
            cells[at + WRITER] = -1
            rows[count] = i
            locations[count] = cells[at + LOCATION]
            count += 1
    return count


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def serve_first(
    now: cython.longlong,
    prompt: cython.bint,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
) -> cython.longlong:
    """Serve the first cell in line, and say which it is; it still knows where its update lay and since when."""
    cell: cython.longlong = line[FIRST]
    at: cython.Py_ssize_t = cell * CELL
    area: cython.double
    waited: cython.longlong = now - cells[at + SINCE]
    if waited < 0:
        waited = 0
    if line[CUTS] > 0:
        line[CUTS] -= line[CUTS] // (64 + line[COUNT])
    area = 0.5 * waited * waited
    areas[0] += area
    areas[2 + cell] += area
    line[HISTOGRAMS + bucket(waited)] += 1
    if prompt:
        # Nothing of this key was under way when its update came: both stalenesses are one.
        areas[1] += area
        line[HISTOGRAMS + BUCKETS + bucket(waited)] += 1
        cells[at + SHOWN] = now
    leave_cell(cells, line, at)
    line[COUNT] -= 1
    return cell


def dequeue(
    now: cython.longlong,
    prompt: cython.bint,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
    taken: cython.longlong[:],
    locations: cython.longlong[:],
    since: cython.longlong[:],
) -> None:
    """Serve the first cells in line, as many as `taken` has room for: which, where their updates lie, since when.

    `areas` holds the area under the staleness of the queue, under that of the application (section 5.1), and then under
    the queue's of each cell. `prompt` says that what is served is shown at once.
    """
    i: cython.Py_ssize_t
    if not cython.compiled:
        cells, line, areas, taken = memoryview(cells), memoryview(line), memoryview(areas), memoryview(taken)
        locations, since = memoryview(locations), memoryview(since)
    for i in range(taken.shape[0]):
        taken[i] = serve_first(now, prompt, cells, line, areas)
        locations[i] = cells[taken[i] * CELL + LOCATION]
        since[i] = cells[taken[i] * CELL + SINCE]
        cells[taken[i] * CELL + LOCATION] = -1


def dequeue_one(
    now: cython.longlong,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
    page_slots: cython.Py_ssize_t,
    books: cython.longlong[:],
    following: cython.int[:],
) -> cython.longlong:
    """Serve the first cell, which is shown at once, and free its location; the tuple still lies there."""
    at: cython.Py_ssize_t
    location: cython.longlong
    if not cython.compiled:
        cells, line, areas = memoryview(cells), memoryview(line), memoryview(areas)
        books, following = memoryview(books), memoryview(following)
    at = serve_first(now, True, cells, line, areas) * CELL
    location = cells[at + LOCATION]
    cells[at + LOCATION] = -1
    put_back(location, page_slots, books, following)
    return location


def show(
    now: cython.longlong,
    taken: cython.const[cython.longlong][:],
    since: cython.const[cython.longlong][:],
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
) -> None:
    """The application has got the results of cells that were served: its staleness ends, or starts again where an
    update came in the meantime (figure 4; the overlap O counts once)."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    waited: cython.longlong
    hidden: cython.longlong
    if not cython.compiled:
        taken, since, cells = memoryview(taken), memoryview(since), memoryview(cells)
        line, areas = memoryview(line), memoryview(areas)
    for i in range(taken.shape[0]):
        at = taken[i] * CELL
        waited = now - since[i]
        if waited < 0:
            waited = 0
        hidden = cells[at + SHOWN] - since[i] if cells[at + SHOWN] > since[i] else 0
        areas[1] += 0.5 * waited * waited - 0.5 * hidden * hidden
        line[HISTOGRAMS + BUCKETS + bucket(waited)] += 1
        cells[at + SHOWN] = now


def in_line(
    cells: cython.const[cython.longlong][:], line: cython.const[cython.longlong][:], found: cython.longlong[:]
) -> None:
    """The cells in line, first to be served first."""
    i: cython.Py_ssize_t = 0
    cell: cython.longlong
    if not cython.compiled:
        cells, line, found = memoryview(cells), memoryview(line), memoryview(found)
    cell = line[FIRST]
    while cell >= 0:
        found[i] = cell
        i += 1
        cell = cells[cell * CELL + BEHIND]


def bring_forward(
    chosen: cython.const[cython.longlong][:], cells: cython.longlong[:], line: cython.longlong[:]
) -> None:
    """Put these cells, which are in line, at its front, in this order."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    cell: cython.longlong
    if not cython.compiled:
        chosen, cells, line = memoryview(chosen), memoryview(cells), memoryview(line)
    for i in range(chosen.shape[0] - 1, -1, -1):
        cell = chosen[i]
        if line[FIRST] == cell:
            continue
        at = cell * CELL
        leave_cell(cells, line, at)
        cells[at + AHEAD] = -1
        cells[at + BEHIND] = line[FIRST]
        cells[line[FIRST] * CELL + AHEAD] = cell
        line[FIRST] = cell


# -- random load shedding ----------------------------------------------------------------------------------------------

# Numbers of a waiting tuple; its place among the entries says nothing of its place in line. The line of an appending
# queue has FIRST, END and COUNT as above, then how many were shed.
BEFORE_IT = cython.declare(cython.int, 0)
AFTER_IT = cython.declare(cython.int, 1)
LIES_AT = cython.declare(cython.int, 2)
ENTRY = cython.declare(cython.int, 3)
SHED = cython.declare(cython.int, 3)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def leave_line(entries: cython.longlong[:], line: cython.longlong[:], entry: cython.longlong) -> cython.void:
    """Take a waiting tuple out of line."""
    before: cython.longlong = entries[entry * ENTRY + BEFORE_IT]
    after: cython.longlong = entries[entry * ENTRY + AFTER_IT]
    if before >= 0:
        entries[before * ENTRY + AFTER_IT] = after
    else:
        line[FIRST] = after
    if after >= 0:
        entries[after * ENTRY + BEFORE_IT] = before
    else:
        line[END] = before


def append(
    count: cython.Py_ssize_t,
    limit: cython.longlong,
    fresh: cython.const[cython.longlong][:],
    drawn: cython.const[cython.longlong][:],
    entries: cython.longlong[:],
    line: cython.longlong[:],
    rows: cython.longlong[:],
    locations: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Put `count` rows in line. Above `limit`, the next of the `drawn` numbers sheds a waiting tuple, or the new one.

    The first rows lie at the `fresh` locations, the others where a tuple was shed. Returns the number of rows that
    entered, with each row and its location (a later row may take the place of an earlier one).
    """
    i: cython.Py_ssize_t
    entered: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    shed: cython.Py_ssize_t = 0
    entry: cython.longlong
    if not cython.compiled:
        fresh, drawn, entries, line = memoryview(fresh), memoryview(drawn), memoryview(entries), memoryview(line)
        rows, locations = memoryview(rows), memoryview(locations)
    for i in range(count):
        if line[COUNT] < limit:
            entry = line[COUNT]
            line[COUNT] += 1
            entries[entry * ENTRY + LIES_AT] = fresh[used]
            used += 1
        else:
            line[SHED] += 1
            entry = drawn[shed]
            shed += 1
            if entry == limit:
                continue
            leave_line(entries, line, entry)
        entries[entry * ENTRY + BEFORE_IT] = line[END]
        entries[entry * ENTRY + AFTER_IT] = -1
        if line[END] >= 0:
            entries[line[END] * ENTRY + AFTER_IT] = entry
        else:
            line[FIRST] = entry
        line[END] = entry
        rows[entered] = i
        locations[entered] = entries[entry * ENTRY + LIES_AT]
        entered += 1
    return entered


def serve(entries: cython.longlong[:], line: cython.longlong[:], locations: cython.longlong[:]) -> None:
    """Take the first tuples out of line, as many as `locations` has room for (and no more than wait)."""
    i: cython.Py_ssize_t
    entry: cython.longlong
    last: cython.longlong
    j: cython.Py_ssize_t
    if not cython.compiled:
        entries, line, locations = memoryview(entries), memoryview(line), memoryview(locations)
    for i in range(locations.shape[0]):
        entry = line[FIRST]
        locations[i] = entries[entry * ENTRY + LIES_AT]
        leave_line(entries, line, entry)
        line[COUNT] -= 1
        last = line[COUNT]
        if last != entry:
            # The last entry moves into the gap.
            for j in range(ENTRY):
                entries[entry * ENTRY + j] = entries[last * ENTRY + j]
            if entries[entry * ENTRY + BEFORE_IT] >= 0:
                entries[entries[entry * ENTRY + BEFORE_IT] * ENTRY + AFTER_IT] = entry
            else:
                line[FIRST] = entry
            if entries[entry * ENTRY + AFTER_IT] >= 0:
                entries[entries[entry * ENTRY + AFTER_IT] * ENTRY + BEFORE_IT] = entry
            else:
                line[END] = entry


def waiting(
    entries: cython.const[cython.longlong][:], line: cython.const[cython.longlong][:], locations: cython.longlong[:]
) -> None:
    """Where the tuples in line lie, first to be served first."""
    i: cython.Py_ssize_t = 0
    entry: cython.longlong
    if not cython.compiled:
        entries, line, locations = memoryview(entries), memoryview(line), memoryview(locations)
    entry = line[FIRST]
    while entry >= 0:
        locations[i] = entries[entry * ENTRY + LIES_AT]
        i += 1
        entry = entries[entry * ENTRY + AFTER_IT]
