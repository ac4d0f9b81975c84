#!/usr/bin/env bash
# Tests everything in deploy/ with the real tools; `make check-deploy` runs it. No test is skipped: a tool that is missing
# and cannot be installed is a failure.
#
#   deploy/check.sh PYTHON [FOLDER]     PYTHON has Millrace and its development tools; FOLDER keeps the image's base
#
# Needs root (chroots, mounts) and Debian packages; missing packages are installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHON=$1
FOLDER=${2:-build/prove-image}

PACKAGES=(buildah ca-certificates debootstrap docker-compose openssl prometheus shellcheck systemd)
missing=()
for package in "${PACKAGES[@]}"; do
  dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "check-deploy: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends "${missing[@]}" >/dev/null
fi
"$PYTHON" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/deploy.lock

"$PYTHON" -m pytest -p no:cacheprovider -o timeout=300 deploy/check
deploy/prove-image.sh "$FOLDER"
