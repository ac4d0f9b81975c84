-- A door sensor and a till: their events in order of time.
CREATE STREAM door  (ts TIMESTAMP, visitor TEXT) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM till  (ts TIMESTAMP, visitor TEXT, cents BIGINT) WITH (timestamps = 'external', time = 'ts');

CREATE QUERY diary WITH (order = 'event') AS
  SELECT ts, visitor, 'came in' AS what FROM door
  UNION ALL
  SELECT ts, visitor, 'paid ' || (cents / 100) || ' euros' FROM till WHERE cents >= 100;
