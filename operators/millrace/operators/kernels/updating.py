"""The loops of update queues: pages and their empty locations, key cells in line, random shedding.

Pages (UPS, section 7.1). A location is a number; page p has the locations p * slots and up. Per page, `pages` holds
four numbers: its first empty location, how many of its locations are in use, and its neighbours in the
empty-locations pool, the list of pages in use that have room. `following` links the empty locations of a page.
`pool` is a stack of the pages that nobody has.

Key cells (figure 15). Per key, `cells` holds the numbers named below; cells that have an update in the queue are in
line, first to be served first. `line` holds what concerns the queue as a whole. -1 is no cell, page or location.
"""

import cython

# -- pages -------------------------------------------------------------------------------------------------------------

# Numbers of a page.
EMPTY = cython.declare(cython.int, 0)
USED = cython.declare(cython.int, 1)
BEFORE = cython.declare(cython.int, 2)
AFTER = cython.declare(cython.int, 3)
PAGE = cython.declare(cython.int, 4)

# Numbers of the pool: the first page with room, pages that nobody has, pages given out and given back since ever.
ROOM = cython.declare(cython.int, 0)
FREE = cython.declare(cython.int, 1)
TAKEN = cython.declare(cython.int, 2)
RETURNED = cython.declare(cython.int, 3)


def allocate(
    found: cython.longlong[:],
    slots: cython.Py_ssize_t,
    pages: cython.longlong[:],
    following: cython.int[:],
    pool: cython.longlong[:],
    account: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Fill `found` with empty locations (MemAdd): first those of pages in use, then those of pages from the pool.

    Returns how many were found before the pool was empty.
    """
    i: cython.Py_ssize_t
    j: cython.Py_ssize_t
    page: cython.longlong
    at: cython.longlong
    location: cython.longlong
    after: cython.longlong
    if not cython.compiled:
        found, pages, following = memoryview(found), memoryview(pages), memoryview(following)
        pool, account = memoryview(pool), memoryview(account)
    for i in range(found.shape[0]):
        page = account[ROOM]
        if page < 0:
            if account[FREE] == 0:
                return i
            account[FREE] -= 1
            account[TAKEN] += 1
            page = pool[account[FREE]]
            at = page * PAGE
            for j in range(slots - 1):
                following[page * slots + j] = cython.cast(cython.int, page * slots + j + 1)
            following[page * slots + slots - 1] = -1
            pages[at + EMPTY] = page * slots
            pages[at + USED] = 0
            pages[at + BEFORE] = -1
            pages[at + AFTER] = -1
            account[ROOM] = page
        at = page * PAGE
        location = pages[at + EMPTY]
        found[i] = location
        pages[at + EMPTY] = following[location]
        pages[at + USED] += 1
        if pages[at + EMPTY] < 0:
            after = pages[at + AFTER]
            account[ROOM] = after
            if after >= 0:
                pages[after * PAGE + BEFORE] = -1
    return found.shape[0]


def release(
    locations: cython.const[cython.longlong][:],
    slots: cython.Py_ssize_t,
    pages: cython.longlong[:],
    following: cython.int[:],
    pool: cython.longlong[:],
    account: cython.longlong[:],
) -> None:
    """Give locations back (MemRem). A page whose last location comes back returns to the pool at once."""
    i: cython.Py_ssize_t
    page: cython.longlong
    at: cython.longlong
    before: cython.longlong
    after: cython.longlong
    if not cython.compiled:
        locations, pages, following = memoryview(locations), memoryview(pages), memoryview(following)
        pool, account = memoryview(pool), memoryview(account)
    for i in range(locations.shape[0]):
        page = locations[i] // slots
        at = page * PAGE
        if pages[at + EMPTY] < 0:
            # It was full: now it has room, and is the first to be filled again.
            after = account[ROOM]
            pages[at + BEFORE] = -1
            pages[at + AFTER] = after
            if after >= 0:
                pages[after * PAGE + BEFORE] = page
            account[ROOM] = page
        following[locations[i]] = cython.cast(cython.int, pages[at + EMPTY])
        pages[at + EMPTY] = locations[i]
        pages[at + USED] -= 1
        if pages[at + USED] == 0:
            before = pages[at + BEFORE]
            after = pages[at + AFTER]
            if before >= 0:
                pages[before * PAGE + AFTER] = after
            else:
                account[ROOM] = after
            if after >= 0:
                pages[after * PAGE + BEFORE] = before
            pool[account[FREE]] = page
            account[FREE] += 1
            account[TAKEN] -= 1
            account[RETURNED] += 1


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

# Numbers of the line, then two histograms: how long updates waited in the queue, and until they were shown.
FIRST = cython.declare(cython.int, 0)
END = cython.declare(cython.int, 1)
COUNT = cython.declare(cython.int, 2)
SUPERSEDED = cython.declare(cython.int, 3)
HISTOGRAMS = cython.declare(cython.int, 4)
BUCKETS = cython.declare(cython.int, 64)

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
    """Let each row update its key's cell (section 5.2, 5.3); `cost` is what serving one takes.

    Cells that get in line stand in `entering`, in order; says how many. They still want a location.
    """
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    cell: cython.longlong
    gap: cython.longlong
    ahead: cython.longlong
    behind: cython.longlong
    entered: cython.Py_ssize_t = 0
    first: cython.longlong
    end: cython.longlong
    count: cython.longlong
    cuts: cython.bint
    if not cython.compiled:
        slots, ts, arrival = memoryview(slots), memoryview(ts), memoryview(arrival)
        cells, line, entering = memoryview(cells), memoryview(line), memoryview(entering)
    first = line[FIRST]
    end = line[END]
    count = line[COUNT]
    for i in range(slots.shape[0]):
        cell = slots[i]
        at = cell * CELL
        if ts[i] < cells[at + NEWEST]:
            # Older than what came before it: superseded already.
            line[SUPERSEDED] += 1
            continue
        cells[at + NEWEST] = ts[i]
        if cells[at + GAP] == -2:
            cells[at + GAP] = -1  # the first update of this key: nothing is known of its rate
        else:
            gap = arrival[i] - cells[at + LAST]
            if gap < 0:
                gap = 0
            cells[at + GAP] = gap if cells[at + GAP] < 0 else (3 * cells[at + GAP] + gap) >> 2
        cells[at + LAST] = arrival[i]
        cells[at + WRITER] = i
        # Section 5.3: u_k < 1 / (c * n).
        cuts = policy == LINECUTTING and cost > 0 and cells[at + GAP] > cost * count
        if cells[at + LOCATION] == -1:
            cells[at + LOCATION] = -2
            cells[at + SINCE] = arrival[i]
            entering[entered] = cell
            entered += 1
            count += 1
        else:
            line[SUPERSEDED] += 1
            if not (policy == FIFO and end != cell) and not (cuts and first != cell):
                continue  # it keeps its place
            ahead = cells[at + AHEAD]
            behind = cells[at + BEHIND]
            if ahead >= 0:
                cells[ahead * CELL + BEHIND] = behind
            else:
                first = behind
            if behind >= 0:
                cells[behind * CELL + AHEAD] = ahead
            else:
                end = ahead
        if cuts:
            cells[at + AHEAD] = -1
            cells[at + BEHIND] = first
            if first >= 0:
                cells[first * CELL + AHEAD] = cell
            else:
                end = cell
            first = cell
        else:
            cells[at + AHEAD] = end
            cells[at + BEHIND] = -1
            if end >= 0:
                cells[end * CELL + BEHIND] = cell
            else:
                first = cell
            end = cell
    line[FIRST] = first
    line[END] = end
    line[COUNT] = count
    return entered


def place(
    entering: cython.const[cython.longlong][:], locations: cython.const[cython.longlong][:], cells: cython.longlong[:]
) -> None:
    """Give the cells that have got in line their locations."""
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


def dequeue(
    now: cython.longlong,
    prompt: cython.bint,
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
    taken: cython.longlong[:],
    locations: cython.longlong[:],
    since: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Serve the first cells in line, as many as `taken` has room for: which, where their updates lie, since when.

    `areas` holds, for the queue as a whole and then per cell, the area under its queue staleness and under its
    application's (section 5.1). `prompt` says that what is served is shown at once.
    """
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    cell: cython.longlong
    waited: cython.longlong
    hidden: cython.longlong
    area: cython.double
    if not cython.compiled:
        cells, line, areas, taken = memoryview(cells), memoryview(line), memoryview(areas), memoryview(taken)
        locations, since = memoryview(locations), memoryview(since)
    for i in range(taken.shape[0]):
        cell = line[FIRST]
        if cell < 0:
            return i
        at = cell * CELL
        taken[i] = cell
        locations[i] = cells[at + LOCATION]
        since[i] = cells[at + SINCE]
        waited = now - cells[at + SINCE]
        if waited < 0:
            waited = 0
        area = 0.5 * waited * waited
        areas[0] += area
        areas[2 + 2 * cell] += area
        line[HISTOGRAMS + bucket(waited)] += 1
        if prompt:
            hidden = cells[at + SHOWN] - cells[at + SINCE] if cells[at + SHOWN] > cells[at + SINCE] else 0
            area -= 0.5 * hidden * hidden
            areas[1] += area
            areas[3 + 2 * cell] += area
            line[HISTOGRAMS + BUCKETS + bucket(waited)] += 1
            cells[at + SHOWN] = now
        cells[at + LOCATION] = -1
        line[FIRST] = cells[at + BEHIND]
        if line[FIRST] >= 0:
            cells[line[FIRST] * CELL + AHEAD] = -1
        else:
            line[END] = -1
        line[COUNT] -= 1
    return taken.shape[0]


def show(
    now: cython.longlong,
    taken: cython.const[cython.longlong][:],
    since: cython.const[cython.longlong][:],
    cells: cython.longlong[:],
    line: cython.longlong[:],
    areas: cython.double[:],
) -> None:
    """The application has got the results of cells that were served: its staleness ends, or begins anew where an
    update came in the meantime (figure 4; the overlap O counts once)."""
    i: cython.Py_ssize_t
    at: cython.Py_ssize_t
    waited: cython.longlong
    hidden: cython.longlong
    area: cython.double
    if not cython.compiled:
        taken, since, cells = memoryview(taken), memoryview(since), memoryview(cells)
        line, areas = memoryview(line), memoryview(areas)
    for i in range(taken.shape[0]):
        at = taken[i] * CELL
        waited = now - since[i]
        if waited < 0:
            waited = 0
        hidden = cells[at + SHOWN] - since[i] if cells[at + SHOWN] > since[i] else 0
        area = 0.5 * waited * waited - 0.5 * hidden * hidden
        areas[1] += area
        areas[3 + 2 * taken[i]] += area
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


# -- random load shedding ----------------------------------------------------------------------------------------------

# Numbers of a waiting tuple; its place among the entries says nothing of its place in line. The line of an appending
# queue has FIRST, END and COUNT as above, then how many were shed and the state of the generator that chooses.
BEFORE_IT = cython.declare(cython.int, 0)
AFTER_IT = cython.declare(cython.int, 1)
LIES_AT = cython.declare(cython.int, 2)
ENTRY = cython.declare(cython.int, 3)
SHED = cython.declare(cython.int, 3)
CHANCE = cython.declare(cython.int, 4)
GOLDEN = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
MIX_1 = cython.declare(cython.ulonglong, 0xBF58476D1CE4E5B9)
MIX_2 = cython.declare(cython.ulonglong, 0x94D049BB133111EB)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def draw(state: cython.longlong, below: cython.longlong) -> cython.longlong:
    """A number from 0 up to, not including, `below` (less than 2**31), from the state of a generator (SplitMix64)."""
    z: cython.ulonglong
    if cython.compiled:
        z = cython.cast(cython.ulonglong, state)
        z = (z ^ (z >> 30)) * MIX_1
        z = (z ^ (z >> 27)) * MIX_2
        z = z ^ (z >> 31)
        return cython.cast(cython.longlong, ((z >> 33) * cython.cast(cython.ulonglong, below)) >> 31)
    z = state & (2**64 - 1)
    z = ((z ^ (z >> 30)) * MIX_1) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * MIX_2) & (2**64 - 1)
    z = z ^ (z >> 31)
    return ((z >> 33) * below) >> 31


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def advanced(state: cython.longlong) -> cython.longlong:
    """The generator's next state."""
    if cython.compiled:
        return cython.cast(cython.longlong, cython.cast(cython.ulonglong, state) + GOLDEN)
    return ((state + GOLDEN + 2**63) & (2**64 - 1)) - 2**63


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
    entries: cython.longlong[:],
    line: cython.longlong[:],
    rows: cython.longlong[:],
    locations: cython.longlong[:],
) -> cython.Py_ssize_t:
    """Let `count` rows get in line; above `limit` one of those waiting or the one just come is shed, each as likely.

    The first that find room lie at the `fresh` locations, the others where one was shed. Gives the rows that got in
    and where each belongs (a later row may want the place of an earlier one); says how many.
    """
    i: cython.Py_ssize_t
    entered: cython.Py_ssize_t = 0
    used: cython.Py_ssize_t = 0
    entry: cython.longlong
    if not cython.compiled:
        fresh, entries, line = memoryview(fresh), memoryview(entries), memoryview(line)
        rows, locations = memoryview(rows), memoryview(locations)
    for i in range(count):
        if line[COUNT] < limit:
            entry = line[COUNT]
            line[COUNT] += 1
            entries[entry * ENTRY + LIES_AT] = fresh[used]
            used += 1
        else:
            line[SHED] += 1
            line[CHANCE] = advanced(line[CHANCE])
            entry = draw(line[CHANCE], limit + 1)
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
