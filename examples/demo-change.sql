-- Another condition for the demo's alarms. `millrace apply examples/demo-change.sql --plan` shows the effect; without
-- --plan, the query is replaced while rows flow. The join keeps its owners.
CREATE OR REPLACE QUERY alarms AS
  SELECT w.ts, w.link, w.src, o.owner, w.dst, w.port
    FROM watch w LEFT JOIN LATEST owners o ON o.ip = w.src
    WHERE w.port IN (22, 23, 3389);
