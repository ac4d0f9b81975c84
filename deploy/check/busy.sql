-- In addition to the demo: data for every panel of the dashboard.
CREATE STREAM door (ts TIMESTAMP, visitor TEXT) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM till (ts TIMESTAMP, visitor TEXT, cents BIGINT) WITH (timestamps = 'external', time = 'ts');
CREATE STREAM quotes (symbol TEXT, price DOUBLE) WITH (update_key = 'symbol', history = 'true');

-- The till answers timestamp requests; the door rarely opens.
CREATE QUERY diary WITH (order = 'event') AS
  SELECT ts, visitor FROM door UNION ALL SELECT ts, visitor FROM till;

CREATE QUERY prices AS SELECT symbol, price FROM quotes LATEST USING LINECUTTING WHERE price > 0;
CREATE SINK newest FROM prices WITH (type = 'file', path = 'prices.jsonl', freshness = '1 us');
CREATE QUERY sample AS SELECT src, bytes FROM office SHED RANDOM 100;

-- Rows that cannot be computed, and a query that is not running.
CREATE QUERY ratio AS SELECT src, bytes / (port - 22) AS ratio FROM office;
CREATE QUERY asleep AS SELECT src FROM branch;
