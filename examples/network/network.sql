-- Packets of a small network: top senders and port scans.
CREATE STREAM packets (ts TIMESTAMP, src TEXT, dst TEXT, port BIGINT, bytes BIGINT)
  WITH (time = 'ts', disorder = '1 second', max_skew = '2 seconds');

-- Bytes per sender, every 10 seconds.
CREATE QUERY traffic AS
  SELECT src, sum(bytes) AS bytes, count(*) AS packets, window_end
  FROM TUMBLE(packets, ts, INTERVAL '10 seconds')
  GROUP BY src;

-- The three top senders of each 10 seconds. Places are computed when the window closes, and are final.
CREATE QUERY talkers AS
  SELECT window_end, place, src, bytes
  FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY bytes DESC, src) AS place FROM traffic)
  WHERE place <= 3;

-- One sender, one target, many ports within 10 seconds. Windows start every 5 seconds, so none splits a short scan.
CREATE QUERY scans AS
  SELECT src, dst, count(DISTINCT port) AS ports, window_end
  FROM HOP(packets, ts, INTERVAL '5 seconds', INTERVAL '10 seconds')
  GROUP BY src, dst
  HAVING count(DISTINCT port) >= 20;
