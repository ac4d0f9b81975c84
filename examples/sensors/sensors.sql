-- Sensors send by radio: readings come out of order, and some come very late.
CREATE STREAM readings (at TIMESTAMP, sensor TEXT, celsius DOUBLE)
  WITH (time = 'at', disorder = '2 seconds', max_skew = '5 seconds');

-- Per sensor and 10 seconds. The order of arrival changes nothing in it.
CREATE QUERY per_ten AS
  SELECT sensor, round(avg(celsius), 2) AS celsius, count(*) AS n, window_end
  FROM TUMBLE(readings, at, INTERVAL '10 seconds')
  GROUP BY sensor;

-- The same readings in order of time, for whoever needs them so: they come later by the disorder.
CREATE QUERY in_order WITH (order = 'event') AS SELECT at, sensor, celsius FROM readings;

-- What came too late for both, with how much: a stream like any other.
CREATE QUERY missed AS
  SELECT sensor, count(*) AS n, max(late_by_us) / 1000 AS late_by_ms
  FROM readings.late
  GROUP BY sensor;
