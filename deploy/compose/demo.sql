-- Two links of a small network; deploy/compose/feeds.py feeds them. The server stamps both, so it knows when an operator
-- need not wait for the one that is silent.
CREATE STREAM office (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);
CREATE STREAM branch (src TEXT, dst TEXT, port BIGINT, bytes BIGINT);

-- Large transfers of the office and whatever the branch does, in one order of time.
CREATE QUERY watch WITH (order = 'event') AS
  SELECT ts, 'office' AS link, src, dst, port, bytes FROM office WHERE bytes > 12 * 1024
  UNION ALL
  SELECT ts, 'branch' AS link, src, dst, port, bytes FROM branch;

-- Who sends how much, every ten seconds.
CREATE QUERY talkers AS
  SELECT src, count(*) AS packets, sum(bytes) AS bytes, window_start
  FROM TUMBLE(office, ts, INTERVAL '10 seconds')
  GROUP BY src, window_start;
