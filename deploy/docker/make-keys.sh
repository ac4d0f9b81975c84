#!/bin/sh
# Create a self-signed certificate and its key in the folder $1, for the host names after it, unless they exist.
#
# For tests on one machine, and for networks where every client can get certificate.pem. Elsewhere use the certificates of
# your organisation.
set -eu

folder=${1:?usage: make-keys.sh FOLDER HOST...}
shift
mkdir -p -- "$folder"
cd -- "$folder"
[ -e key.pem ] && [ -e certificate.pem ] && exit 0

names=IP:127.0.0.1
for host in localhost "$@"; do names="$names,DNS:$host"; done
umask 077
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 825 -subj "/CN=${1:-localhost}" \
  -addext "subjectAltName=$names" -keyout key.pem -out certificate.pem 2>openssl.log || { cat openssl.log >&2; exit 1; }
rm openssl.log
chmod 0644 certificate.pem
