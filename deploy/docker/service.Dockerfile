# syntax=docker/dockerfile:1
# The service. From the repository's root:
#   docker build -f deploy/docker/service.Dockerfile -t orchestrator:0.1.0 .
# Where jobs run in this very container (compose, one machine), it needs torch as well:
#   --build-arg EXTRAS=postgres,otel,torch --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Where a mirror takes the place of the package index: --build-arg PIP_INDEX_URL=https://mirror.example/simple
# For a build that can be repeated to the byte, name the base by its digest: --build-arg BASE=python@sha256:...
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=postgres,otel
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX=${PIP_INDEX_URL}
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/orchestrator
COPY . .
RUN /opt/orchestrator/bin/pip install --no-cache-dir --constraint constraints.txt --extra-index-url "${TORCH_INDEX}" \
      ".[${EXTRAS}]" \
 && /opt/orchestrator/bin/pip uninstall --yes setuptools pip

FROM ${BASE}
LABEL org.opencontainers.image.title="elastic-orchestrator" \
      org.opencontainers.image.licenses="Apache-2.0"
# The user id of the jobs' pods, so that both can write the run directory that they share.
RUN useradd --uid 1000 --user-group --home-dir /var/lib/orchestrator --shell /usr/sbin/nologin orchestrator \
 && install --directory --owner=orchestrator --group=orchestrator /var/lib/orchestrator
COPY --from=build /opt/orchestrator /opt/orchestrator
ENV PATH=/opt/orchestrator/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ORCHESTRATOR_HOST=0.0.0.0 \
    ORCHESTRATOR_PORT=8700 \
    ORCHESTRATOR_ROOT=/var/lib/orchestrator
USER 1000:1000
WORKDIR /var/lib/orchestrator
VOLUME /var/lib/orchestrator
EXPOSE 8700
STOPSIGNAL SIGTERM
# Plain HTTP on loopback; a service with a certificate of its own is probed from outside.
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=4 \
  CMD ["python", "-c", "import os, urllib.request as request; request.urlopen('http://127.0.0.1:' + os.environ['ORCHESTRATOR_PORT'] + '/healthz', timeout=4)"]
ENTRYPOINT ["orchestrator"]
CMD ["serve"]
