-- A reader on each packing line reports products, and a second reader reports new cases.
CREATE STREAM cases    (at TIMESTAMP, line BIGINT, box TEXT)  WITH (time = 'at');
CREATE STREAM products (at TIMESTAMP, line BIGINT, tag TEXT)  WITH (time = 'at');
CREATE STREAM orders   (at TIMESTAMP, id BIGINT, item TEXT)   WITH (time = 'at');
CREATE STREAM parcels  (at TIMESTAMP, item TEXT, label TEXT)  WITH (time = 'at');

-- The contents of cases: a product belongs to the newest case of its line.
CREATE QUERY packed AS
  SELECT c.line, c.box, p.tag
  FROM cases c FOLLOWED BY products p RECENT ON c.line = p.line;

-- Cases without a product within 30 seconds.
CREATE QUERY empty AS
  SELECT c.line, c.box
  FROM cases c FOLLOWED BY NO products p WITHIN '30 seconds' ON c.line = p.line;

-- Each parcel goes to the oldest order of its item that has no parcel yet.
CREATE QUERY served AS
  SELECT o.id, o.item, p.label
  FROM orders o FOLLOWED BY parcels p CHRONICLE ON o.item = p.item;

-- Orders without a parcel within a minute.
CREATE QUERY overdue AS
  SELECT o.id, o.item
  FROM orders o FOLLOWED BY NO parcels p WITHIN '1 minute' ON o.item = p.item;
