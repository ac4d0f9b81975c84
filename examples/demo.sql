-- Two links of a small network. The office link is busy, the branch link hardly ever speaks: a plain union in
-- order of time would wait for it. The server stamps both, so it knows when it need not wait.
CREATE STREAM office (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);
CREATE STREAM branch (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);

-- Large transfers of the office and whatever the branch does outside the web, in one order of time.
CREATE QUERY watch WITH (order = 'event') AS
  SELECT ts, 'office' AS link, src, dst, port, bytes / 1024 AS kib
    FROM office
    WHERE bytes > 12 * 1024
  UNION ALL
  SELECT ts, 'branch' AS link, src, dst, port, bytes / 1024 AS kib
    FROM branch
    WHERE port <> 443 AND port <> 80;

-- A query over a query: what should not be there at all.
CREATE QUERY alarms AS
  SELECT ts, link, src, dst, port
    FROM watch
    WHERE port = 23 OR port = 3389;
