# The CPU image: no torch, no compiler, no shell needed, not root. Any Python 3.11 to 3.13 base will do:
#   docker build --build-arg BASE=registry.example/python:3.12-slim -t sentiment .
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
# Only what the wheel is made of: a change of tests or docs keeps this layer.
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY service service
COPY models/sentiment_models models/sentiment_models
RUN python3 -m venv /opt/sentiment \
 && /opt/sentiment/bin/pip install --no-cache-dir --disable-pip-version-check '.[cpu]' \
 && /opt/sentiment/bin/pip uninstall --yes --quiet pip

FROM ${BASE} AS cpu
COPY --from=build /opt/sentiment /opt/sentiment
COPY models/bundles /models
ENV PATH=/opt/sentiment/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    SENTIMENT_GRPC_LISTEN=0.0.0.0:50051 \
    SENTIMENT_HTTP_LISTEN=0.0.0.0:8080
USER 65532:65532
EXPOSE 50051 8080
# Nothing is written: a read-only root file system needs no volume.
ENTRYPOINT ["sentiment"]
CMD ["serve"]
