# syntax=docker/dockerfile:1
# What training jobs run in: torch, the bundled trainer and the agent. From the repository's root:
#   docker build -f deploy/docker/trainer.Dockerfile --target cpu  -t orchestrator-trainer:0.1.0-cpu .
#   docker build -f deploy/docker/trainer.Dockerfile --target cuda -t orchestrator-trainer:0.1.0-cuda .
# Where mirrors take the place of the package indexes: --build-arg PIP_INDEX_URL=https://mirror.example/simple
#   --build-arg CPU_INDEX=https://mirror.example/pytorch-cpu
# torch's CUDA wheels bring their own CUDA libraries: the node needs the driver alone.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS source
ARG PIP_INDEX_URL=https://pypi.org/simple
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python -m venv /opt/trainer
COPY . .

FROM source AS build-cpu
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
RUN /opt/trainer/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url "${CPU_INDEX}" ".[torch,s3,tensorboard]" "torch==2.13.0+cpu" \
 && /opt/trainer/bin/pip uninstall --yes pip

FROM source AS build-cuda
ARG CUDA_INDEX=${PIP_INDEX_URL}
RUN /opt/trainer/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url "${CUDA_INDEX}" ".[torch,s3,tensorboard]" \
 && /opt/trainer/bin/pip uninstall --yes pip

FROM ${BASE} AS common
LABEL org.opencontainers.image.title="elastic-orchestrator trainer" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 1000 --user-group --create-home --shell /usr/sbin/nologin trainer
ENV PATH=/opt/trainer/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /home/trainer
# An agent is healthy as long as its workers report; whoever supervises it sees that, and no probe in here.
HEALTHCHECK NONE
CMD ["elasticrun", "--help"]

FROM common AS cuda
COPY --from=build-cuda /opt/trainer /opt/trainer
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The last one is what a build without --target makes.
FROM common AS cpu
COPY --from=build-cpu /opt/trainer /opt/trainer
