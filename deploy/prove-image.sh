#!/usr/bin/env bash
# Build the image without a Docker engine and test it: buildah in a chroot, on a base image from debootstrap.
#
#   deploy/prove-image.sh [FOLDER]      as root; needs Debian's buildah and debootstrap
#
# The base replaces the one in Dockerfile: Debian with Python and its headers. FOLDER keeps it for the next run. The test
# shows that the image builds, and contains neither compiler nor pip. With its defaults the server is healthy as a user
# without a shell, accepts and delivers rows, ends after SIGTERM and restores its catalog. The same holds on all addresses
# with TLS. Both times it requires the tokens that it has created, and that of Prometheus only reads.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

FOLDER=${1:-$(mktemp -d)}
mkdir -p "$FOLDER"
FOLDER=$(cd "$FOLDER" && pwd)
WORK=$(mktemp -d "$FOLDER/run.XXXXXX")
DRIVER=overlay
BASE=localhost/millrace-base
IMAGE=localhost/millrace
SERVER=

say() { printf '== %s\n' "$*"; }
fail() { printf 'prove-image: %s\n' "$*" >&2; exit 1; }

# Separate storage: other images on this machine stay untouched.
builder() { buildah --storage-driver "$DRIVER" --root "$FOLDER/images" --runroot "$FOLDER/runroot" "$@"; }

# Without overlays in the kernel, every layer is a complete copy: slower, and large.
builder info >/dev/null 2>&1 || { DRIVER=vfs; rm -rf "$FOLDER/images" "$FOLDER/runroot"; }

clean() {
  [ -z "$SERVER" ] || kill -KILL "$SERVER" 2>/dev/null || true
  builder rm --all >/dev/null 2>&1 || true
  rm -rf "$WORK"
}
trap clean EXIT

# --- build ------------------------------------------------------------------------------------------------------------

make_base() {
  local suite mirror container
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # The mirror that this machine uses.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | sed -n 1p)
  debootstrap --variant=minbase --include=python3,python3-venv,libpython3-dev,ca-certificates,openssl \
    "$suite" "$WORK/base" "$mirror" >"$FOLDER/debootstrap.log" || fail "debootstrap: see $FOLDER/debootstrap.log"
  # The certificate authorities that this machine trusts: pip may need them.
  cp /etc/ssl/certs/ca-certificates.crt "$WORK/base/etc/ssl/certs/ca-certificates.crt"
  container=$(builder from scratch)
  builder copy --quiet "$container" "$WORK/base" / >/dev/null
  builder commit --quiet "$container" "$BASE" >/dev/null
  builder rm "$container" >/dev/null
  rm -rf "$WORK/base"
}

builder inspect --type image "$BASE" >/dev/null 2>&1 || { say "a base, by debootstrap"; make_base; }

say "the image, from Dockerfile"
builder build --isolation chroot --format docker --build-arg "BASE=$BASE" --tag "$IMAGE" . \
  >"$FOLDER/build.log" 2>&1 || { tail -n 40 "$FOLDER/build.log" >&2; fail "the build: see $FOLDER/build.log"; }

CONTAINER=$(builder from "$IMAGE")
ROOT=$(builder mount "$CONTAINER")

# A field of the image's configuration, as JSON in one line.
configured() {
  builder inspect --type image "$IMAGE" | python3 -c '
import functools, json, sys
config = json.load(sys.stdin)["Docker"]["config"]
print(json.dumps(functools.reduce(dict.__getitem__, sys.argv[1].split("."), config), separators=(",", ":")))' "$1"
}
expect() { [ "$2" = "$3" ] || fail "$1: expected $3, got $2"; }

say "what it holds"
expect user "$(configured User)" '"7420:7420"'
expect "stop signal" "$(configured StopSignal)" '"SIGTERM"'
expect ports "$(configured ExposedPorts)" '{"7420/tcp":{},"7421/tcp":{}}'
expect volumes "$(configured Volumes)" '{"/data":{}}'
expect command "$(configured Entrypoint)$(configured Cmd)" '["millrace"]["serve"]'
expect "health check" "$(configured Healthcheck.Test)" '["CMD","millrace-health"]'
expect "login shell" "$(grep ^millrace: "$ROOT/etc/passwd" | cut -d: -f7)" /usr/sbin/nologin
for tool in cc gcc ld as make cython; do
  found=$(find "$ROOT" -xdev \( -type f -o -type l \) -name "$tool" -path '*bin/*')
  [ -z "$found" ] || fail "the last stage has $found"
done
[ -z "$(find "$ROOT/opt" -name 'pip*' -path '*bin/*')" ] || fail "the program's environment has pip"
du -sm "$ROOT/opt/millrace" | sed 's/\t.*/ MB for Millrace and what it needs, beside the base/'

# --- run --------------------------------------------------------------------------------------------------------------

DATA=$WORK/data
KEYS=$WORK/keys
install --directory --owner=7420 --group=7420 --mode=0750 "$DATA" "$KEYS"
SETTINGS=() # for the server
CLIENT=()   # for the client

# In the image's root, as its user, with its environment. It shares this machine's network, so it uses free ports.
inside() { builder run --isolation chroot --volume "$DATA:/data" --volume "$KEYS:/keys" "$@"; }
ask() { inside "${CLIENT[@]}" "$CONTAINER" -- "$@"; }

address() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[sys.argv[2]])' "$DATA/addresses.json" "$1"; }

begin() {
  rm -f "$KEYS/pid"
  inside "${SETTINGS[@]}" "$CONTAINER" -- sh -c 'echo $$ >/keys/pid; exec millrace serve' 2>"$FOLDER/server.log" &
  BUILDAH=$!
  for _ in $(seq 60); do
    if ask millrace-health 2>"$WORK/health.log"; then
      SERVER=$(cat "$KEYS/pid")
      expect "the server's user" "$(stat -c %u "/proc/$SERVER")" 7420
      return
    fi
    kill -0 "$BUILDAH" 2>/dev/null || { cat "$FOLDER/server.log" >&2; fail "the server did not start"; }
    sleep 0.5
  done
  cat "$WORK/health.log" "$FOLDER/server.log" >&2
  fail "the server is not healthy"
}

# STOPSIGNAL, and no process of the server is left.
end() {
  local code=0
  kill -TERM "$SERVER"
  wait "$BUILDAH" || code=$?
  expect "exit code after SIGTERM" "$code" 0
  SERVER=
}

# Prometheus' token reads, and changes nothing.
only_reads() {
  ask millrace query show q --token-file /data/prometheus.token >/dev/null
  ! ask millrace query drop q --token-file /data/prometheus.token >/dev/null 2>&1 || fail "it dropped a query"
}

say "as it comes: on loopback, with the token that it creates"
SETTINGS=(--env MILLRACE_SERVER__LISTEN=127.0.0.1:0 --env MILLRACE_SERVER__ADMIN=127.0.0.1:0)
begin
# Commands of the server's own user would find its token: an empty XDG_RUNTIME_DIR keeps them from looking.
CLIENT=(--env "MILLRACE_ADMIN=$(address admin)" --env XDG_RUNTIME_DIR=)
! ask millrace query list >/dev/null 2>&1 || fail "it answered without a token"
CLIENT+=(--env MILLRACE_TOKEN_FILE=/data/admin.token)
ask millrace sql "CREATE STREAM s (k BIGINT); CREATE QUERY q AS SELECT k + 1 AS next FROM s" >/dev/null
echo '{"k": 41}' | ask millrace feed s --format jsonl >/dev/null 2>&1
only_reads
expect "the row" "$(ask millrace tail q --from 0 --limit 1 2>/dev/null)" '{"next":42}'
end

say "again: it remembers its catalog and its tokens; on all addresses, with TLS"
sh deploy/docker/make-keys.sh "$KEYS" millrace
chown 7420:7420 "$KEYS"/*
SETTINGS=(--env MILLRACE_SERVER__LISTEN=0.0.0.0:0 --env MILLRACE_SERVER__ADMIN=0.0.0.0:0
  --env MILLRACE_SERVER__TLS_CERTIFICATE=/keys/certificate.pem --env MILLRACE_SERVER__TLS_KEY=/keys/key.pem)
begin
CLIENT=(--env "MILLRACE_ADMIN=localhost:$(address admin | sed 's/.*://')"
  --env "MILLRACE_SERVER=localhost:$(address listen | sed 's/.*://')" --env MILLRACE_CA_FILE=/keys/certificate.pem --env XDG_RUNTIME_DIR=)
! ask millrace query list >/dev/null 2>&1 || fail "it answered without a token"
CLIENT+=(--env MILLRACE_TOKEN_FILE=/data/admin.token)
only_reads
echo '{"k": 1}' | ask millrace feed s --format jsonl >/dev/null 2>&1
# Rows of before the restart are there, with their numbers.
expect "the rows by TLS" "$(ask millrace tail q --from 0 --limit 2 2>/dev/null | tr -d '\n')" '{"next":42}{"next":2}'
end

say "proved"
