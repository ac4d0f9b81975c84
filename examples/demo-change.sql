-- Another condition for the demo's alarms: `millrace apply examples/demo-change.sql --plan` says what it would do, and
-- without --plan it is done while rows flow. The join keeps the owners that it knows.
CREATE OR REPLACE QUERY alarms AS
  SELECT w.ts, w.link, w.src, o.owner, w.dst, w.port
    FROM watch w LEFT JOIN LATEST owners o ON o.ip = w.src
    WHERE w.port IN (22, 23, 3389);
