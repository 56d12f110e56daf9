# No torch, no compiler, no shell needed, not root. The CPU image, from any Python 3.11 to 3.13 base:
#   docker build --build-arg BASE=registry.example/python:3.12-slim -t sentiment .
# The GPU image, whose wheel is built on BASE too, for drivers of CUDA 13; CUDA's libraries and cuDNN come as wheels, so that any Debian or Ubuntu base will do:
#   docker build --target gpu --build-arg GPU_BASE=registry.example/cuda:13.0.2-base-ubuntu24.04 -t sentiment-gpu .
# These are tags, which can be another image tomorrow. A digest holds it: NAME:TAG@sha256:..., as the release workflow gives.
ARG BASE=python:3.12-slim
ARG GPU_BASE=nvidia/cuda:13.0.2-base-ubuntu24.04

# The service alone. Only what the wheel is made of: a change of tests or docs keeps this layer.
FROM ${BASE} AS wheel
WORKDIR /src
COPY deploy/locks/build.txt ./
RUN python3 -m venv /opt/hatchling \
 && /opt/hatchling/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes --requirement build.txt
COPY pyproject.toml CHANGELOG.md LICENSE ./
COPY service service
COPY models/sentiment_models models/sentiment_models
RUN /opt/hatchling/bin/hatchling build --target wheel --directory /dist

FROM ${GPU_BASE} AS gpu-python
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
 || (apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*)

FROM gpu-python AS gpu-build
COPY deploy/locks/gpu.txt /locks/
RUN python3 -m venv /opt/sentiment \
 && /opt/sentiment/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes --requirement /locks/gpu.txt
COPY --from=wheel /dist /dist
RUN /opt/sentiment/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps /dist/*.whl \
 && /opt/sentiment/bin/pip uninstall --yes --quiet pip

FROM gpu-python AS gpu
COPY --from=gpu-build /opt/sentiment /opt/sentiment
COPY models/bundles /models
# What the container runtime looks for; bases of NVIDIA's set it too.
ENV PATH=/opt/sentiment/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    SENTIMENT_GRPC_LISTEN=0.0.0.0:50051 \
    SENTIMENT_HTTP_LISTEN=0.0.0.0:8080 \
    SENTIMENT_HEALTH_LISTEN=0.0.0.0:50052 \
    SENTIMENT_CACHE_DIR=/var/cache/sentiment
# Graphs for the GPU are made at the first start and kept here: with a read-only root file system it must be a volume.
RUN install -d -o 65532 -g 65532 /var/cache/sentiment
USER 65532:65532
EXPOSE 50051 8080
# A first start makes graphs, which takes minutes.
HEALTHCHECK --interval=15s --timeout=5s --start-period=600s CMD ["sentiment", "health"]
ENTRYPOINT ["sentiment"]
CMD ["serve"]

FROM ${BASE} AS build
COPY deploy/locks/cpu.txt /locks/
RUN python3 -m venv /opt/sentiment \
 && /opt/sentiment/bin/pip install --no-cache-dir --disable-pip-version-check --only-binary=:all: --require-hashes --requirement /locks/cpu.txt
COPY --from=wheel /dist /dist
RUN /opt/sentiment/bin/pip install --no-cache-dir --disable-pip-version-check --no-index --no-deps /dist/*.whl \
 && /opt/sentiment/bin/pip uninstall --yes --quiet pip

FROM ${BASE} AS cpu
COPY --from=build /opt/sentiment /opt/sentiment
COPY models/bundles /models
ENV PATH=/opt/sentiment/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2 \
    SENTIMENT_GRPC_LISTEN=0.0.0.0:50051 \
    SENTIMENT_HTTP_LISTEN=0.0.0.0:8080 \
    SENTIMENT_HEALTH_LISTEN=0.0.0.0:50052
USER 65532:65532
EXPOSE 50051 8080
# For Docker; Kubernetes has the probes of the chart.
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s CMD ["sentiment", "health"]
# Nothing is written: a read-only root file system needs no volume.
ENTRYPOINT ["sentiment"]
CMD ["serve"]
