# A small image of the server: the wheel is built in one stage, and the last one has neither a compiler nor pip.
#
# What is installed is what requirements/server.lock names, by its hashes. docs/deploy.md says how to run the image;
# deploy/prove-image.sh builds it without a Docker engine and runs what came of it.
ARG BASE=python:3.11-slim-bookworm

# The stage's name does not reach the image. BASE must have python3 with venv and its headers, and apt-get.
FROM ${BASE} AS build
# Whatever compiler the distribution has today: it leaves nothing but kernels behind.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY requirements/build.lock requirements/server.lock requirements/
# The program's environment is without pip; the builder's own pip fills it.
RUN python3 -m venv /build \
 && python3 -m venv --without-pip /opt/millrace \
 && /build/bin/python -m pip install --no-cache-dir --require-hashes -r requirements/build.lock \
 && /build/bin/python -m pip --python /opt/millrace/bin/python install --no-cache-dir --only-binary :all: \
    --require-hashes -r requirements/server.lock
COPY pyproject.toml build_hook.py README.md LICENSE CHANGELOG.md ./
COPY protocol protocol
COPY operators operators
COPY server server
# Cython is needed where kernels run uncompiled, and here they do not; nor does anybody test numpy or compile against it.
RUN /build/bin/python -m pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && /build/bin/python -m pip --python /opt/millrace/bin/python install --no-cache-dir --no-deps /wheels/*.whl \
 && /build/bin/python -m pip --python /opt/millrace/bin/python uninstall --yes cython \
 && find /opt/millrace/lib -type d \( -name tests -o -name include \) -prune -exec rm -rf {} + \
 && /opt/millrace/bin/python -c 'from millrace.values import kernels; assert kernels.compiled()'

FROM ${BASE}
# A user without a shell and without a home, and the folder of the volume, which is all that it may write to.
RUN groupadd --gid 7420 millrace \
 && useradd --uid 7420 --gid 7420 --no-create-home --home-dir /data --shell /usr/sbin/nologin millrace \
 && install --directory --owner=millrace --group=millrace --mode=0750 /data
COPY --from=build /opt/millrace /opt/millrace
COPY --chmod=0755 deploy/docker/health.py /opt/millrace/bin/millrace-health
ENV PATH=/opt/millrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MILLRACE_LOG__FORMAT=json \
    MILLRACE_SERVER__DATA_DIR=/data
VOLUME /data
# 7420: feeds and subscribers. 7421: HTTP. Both listen on loopback until they have TLS and a token (docs/deploy.md).
EXPOSE 7420 7421
USER 7420:7420
WORKDIR /data
STOPSIGNAL SIGTERM
# The start period covers the imports: a server that recovers, an idle one and one that holds its feeds back are healthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["millrace-health"]
ENTRYPOINT ["millrace"]
CMD ["serve"]
