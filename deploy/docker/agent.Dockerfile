# syntax=docker/dockerfile:1
# The agent's package, pure Python, in a small image. An init container of it copies the package into a volume that
# it shares with an image of anybody's that has torch. From the repository's root:
#   docker build -f deploy/docker/agent.Dockerfile -t orchestrator-agent:0.1.0 .
ARG BASE=python:3.11.14-alpine3.22

FROM ${BASE} AS build
WORKDIR /opt/agent
COPY trainer trainer
# A file that is no Python ends the build here. What it compiled to is of this one Python alone, and is left out.
RUN python -m compileall -q trainer \
 && find trainer -name __pycache__ -prune -exec rm -r {} +

FROM ${BASE}
LABEL org.opencontainers.image.title="elastic-orchestrator agent" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN adduser -D -H -u 1000 agent
COPY --from=build /opt/agent /opt/agent
ENV PYTHONPATH=/opt/agent \
    PYTHONDONTWRITEBYTECODE=1
USER 1000:1000
# It runs for a moment.
HEALTHCHECK NONE
CMD ["python3", "-m", "trainer.elastic.pod", "--unpack", "/opt/elastic-orchestrator/agent"]
