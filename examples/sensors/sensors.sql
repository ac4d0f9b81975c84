-- Sensors send by radio: readings arrive out of order, and some arrive very late.
CREATE STREAM readings (at TIMESTAMP, sensor TEXT, celsius DOUBLE)
  WITH (time = 'at', disorder = '2 seconds', max_skew = '5 seconds');

-- Means per sensor and 10 seconds. They do not depend on the order of arrival.
CREATE QUERY per_ten AS
  SELECT sensor, round(avg(celsius), 2) AS celsius, count(*) AS n, window_end
  FROM TUMBLE(readings, at, INTERVAL '10 seconds')
  GROUP BY sensor;

-- The same readings in order of time. Each row is delayed by the disorder.
CREATE QUERY in_order WITH (order = 'event') AS SELECT at, sensor, celsius FROM readings;

-- Late readings per sensor: `readings.late` is a stream that queries can read.
CREATE QUERY missed AS
  SELECT sensor, count(*) AS n, max(late_by_us) / 1000 AS late_by_ms
  FROM readings.late
  GROUP BY sensor;
