-- Two links of a small network. The office link is busy, the branch link hardly ever speaks: a plain union in
-- order of time would wait for it. The server stamps both, so it knows when it need not wait.
CREATE STREAM office (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);
CREATE STREAM branch (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);

-- Who has which address now. A tuple replaces the last one of its address.
CREATE STREAM owners (ip TEXT, owner TEXT) WITH (update_key = 'ip');

-- Large transfers of the office and whatever the branch does outside the web, in one order of time.
CREATE QUERY watch WITH (order = 'event') AS
  SELECT ts, 'office' AS link, src, dst, port, bytes / 1024 AS kib
    FROM office
    WHERE bytes > 12 * 1024
  UNION ALL
  SELECT ts, 'branch' AS link, src, dst, port, bytes / 1024 AS kib
    FROM branch
    WHERE port <> 443 AND port <> 80;

-- What should not be there at all, with whoever has the address at that time: a live join with an update stream.
CREATE QUERY alarms AS
  SELECT w.ts, w.link, w.src, o.owner, w.dst, w.port
    FROM watch w LEFT JOIN LATEST owners o ON o.ip = w.src
    WHERE w.port = 23 OR w.port = 3389;
