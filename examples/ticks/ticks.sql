-- Prices of a market. A tick replaces the previous tick of its symbol.
CREATE STREAM ticks (at TIMESTAMP, symbol TEXT, cents BIGINT, pieces BIGINT)
  WITH (time = 'at', max_skew = '1 second', update_key = 'symbol');

-- A board on a wall: only the newest price of each symbol matters, so it supersedes older ones under load.
CREATE QUERY board AS SELECT symbol, cents, at FROM ticks LATEST;

-- An auditor reads every tick of the same stream: this edge appends.
CREATE QUERY volume AS
  SELECT symbol, sum(pieces) AS pieces, count(*) AS ticks, window_end
  FROM TUMBLE(ticks, at, INTERVAL '10 seconds')
  GROUP BY symbol;

-- The three symbols with the highest prices now. A changed place is a new row, and an empty place is a tombstone.
CREATE QUERY top3 AS
  SELECT place, symbol, cents
  FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY cents DESC, symbol) AS place FROM ticks LATEST)
  WHERE place <= 3;
