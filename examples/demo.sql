-- Two links of a small network. The office link is busy and the branch link mostly silent. A union in order of time
-- would wait for it, but the server stamps both streams and can answer for the silent one.
CREATE STREAM office (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);
CREATE STREAM branch (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);

-- The owner of each address. A tuple replaces the previous tuple with its address.
CREATE STREAM owners (ip TEXT, owner TEXT) WITH (update_key = 'ip');

-- Large transfers of the office and non-web traffic of the branch, in order of time.
CREATE QUERY watch WITH (order = 'event') AS
  SELECT ts, 'office' AS link, src, dst, port, bytes / 1024 AS kib
    FROM office
    WHERE bytes > 12 * 1024
  UNION ALL
  SELECT ts, 'branch' AS link, src, dst, port, bytes / 1024 AS kib
    FROM branch
    WHERE port <> 443 AND port <> 80;

-- Telnet and remote desktop, with the owner at that time: a live join with an update stream.
CREATE QUERY alarms AS
  SELECT w.ts, w.link, w.src, o.owner, w.dst, w.port
    FROM watch w LEFT JOIN LATEST owners o ON o.ip = w.src
    WHERE w.port = 23 OR w.port = 3389;
