CREATE STREAM trips (ts TIMESTAMP, car TEXT, place TEXT, lat DOUBLE, lon DOUBLE, fahrenheit DOUBLE)
  WITH (time = 'ts', disorder = '1 minute');

CREATE QUERY far AS
  SELECT ts, plate(car) AS car, celsius(fahrenheit) AS celsius FROM trips WHERE distance_km(lat, lon, 48.137, 11.575) > 100;

CREATE QUERY routes AS
  SELECT plate(car) AS car, route(place) AS route, weighted_mean(fahrenheit, 1) AS mean, window_start
  FROM SESSION(trips, ts, INTERVAL '1 hour') GROUP BY plate(car);
