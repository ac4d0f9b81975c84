#!/bin/sh
# Hand out tokens of a server that runs with the data directory $1, as root. Each folder gets what one client needs:
#
#   $2   a token that creates streams and queries, feeds and reads
#   $3   the token that only reads, which the server has created for Prometheus
#
# Clients on other machines need a token in the same way; docs/howto/secure.md has the roles.
set -eu

data=${1:?usage: make-tokens.sh DATA CLIENTS SCRAPE}
clients=${2:?}
scrape=${3:?}

if ! [ -s "$clients/token" ] || ! millrace token list --data-dir "$data" | grep -q '^demo '; then
  rm -f -- "$clients/token"
  millrace token create demo change feed --data-dir "$data" --output "$clients/token"
fi
cp -- "$data/prometheus.token" "$scrape/token"
chmod 0444 "$clients/token" "$scrape/token"
