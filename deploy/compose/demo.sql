-- Two links of a small network; deploy/compose/feeds.py feeds them. The server stamps both, so operators never wait for a
-- silent link.
CREATE STREAM office (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);
CREATE STREAM branch (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);

-- Large transfers of the office and all packets of the branch, in order of time.
CREATE QUERY watch WITH (order = 'event') AS
  SELECT ts, 'office' AS link, src, dst, port, bytes FROM office WHERE bytes > 12 * 1024
  UNION ALL
  SELECT ts, 'branch' AS link, src, dst, port, bytes FROM branch;

-- Bytes per sender, every ten seconds.
CREATE QUERY talkers AS
  SELECT src, count(*) AS packets, sum(bytes) AS bytes, window_start
  FROM TUMBLE(office, ts, INTERVAL '10 seconds')
  GROUP BY src, window_start;
