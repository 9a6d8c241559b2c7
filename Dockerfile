# Fairlane, with the extras `otel` and `s3`. Two stages: the first installs, the second holds Python, what was installed, and nothing to build with.
# Pin the image that both begin with: --build-arg PYTHON_IMAGE=python:3.13-slim@sha256:… (docker buildx imagetools inspect python:3.13-slim).
ARG PYTHON_IMAGE=python:3.13-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE requirements-image.lock ./
COPY src ./src
COPY gateway ./gateway
COPY queues ./queues
COPY streaming ./streaming
COPY workers ./workers
COPY web ./web
RUN python -m venv /opt/fairlane \
 && /opt/fairlane/bin/pip install --no-cache-dir --require-hashes -r requirements-image.lock \
 && /opt/fairlane/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/fairlane/bin/pip uninstall --yes setuptools

FROM ${PYTHON_IMAGE}
RUN useradd --system --uid 10001 --home-dir /var/lib/fairlane --create-home fairlane \
 && install -d -o fairlane -g fairlane -m 700 /var/lib/fairlane-files
COPY --from=build /opt/fairlane /opt/fairlane
ENV PATH=/opt/fairlane/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    FAIRLANE_HOST=0.0.0.0 \
    FAIRLANE_PORT=8080 \
    FAIRLANE_DATA_DIR=/var/lib/fairlane/data \
    FAIRLANE_LOG_FORMAT=json
USER 10001
WORKDIR /var/lib/fairlane
VOLUME /var/lib/fairlane
EXPOSE 8080
# A gateway's. Run a worker with --no-healthcheck, and either with --stop-timeout 45: Docker's 10 s end tasks that would finish.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/livez', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["fairlane"]
CMD ["serve"]
