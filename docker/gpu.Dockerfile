# inflight on NVIDIA's container of Triton and TensorRT-LLM 1.2.1.
# Build at the repository's root: docker build --file docker/gpu.Dockerfile --tag inflight-gpu:0.1.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY requirements.lock ./
RUN pip install --no-cache-dir --constraint requirements.lock hatchling
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3
ARG EXTRAS=serve,s3
LABEL org.opencontainers.image.title="inflight-gpu" \
      org.opencontainers.image.description="LLMs on NVIDIA Triton and TensorRT-LLM with in-flight batching" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
USER 0:0
# An environment of our own over that of the base, which is not touched: what the base has is used if it will do, at
# its version; what it has not comes at the lock's. TensorRT-LLM needs many packages, some of them at one version alone.
RUN --mount=type=bind,target=/source \
    python3 -m venv --without-pip /opt/inflight \
    && python3 -c 'import site; print(*site.getsitepackages(), sep="\n")' \
        > "$(/opt/inflight/bin/python -c 'import site; print(site.getsitepackages()[0])')/base.pth" \
    && python3 /source/docker/image_requirements.py --project /source/pyproject.toml --extras "$EXTRAS" \
        --without nvidia-pytriton > /tmp/wanted.txt \
    && python3 /source/docker/image_requirements.py --lock /source/requirements.lock > /tmp/constraints.txt \
    && python3 -m pip --python /opt/inflight/bin/python install --no-cache-dir \
        --requirement /tmp/wanted.txt --constraint /tmp/constraints.txt \
    && rm /tmp/wanted.txt /tmp/constraints.txt
# The base has a user 1000, triton-server. Any other works too: what is written is written to /run/inflight and /tmp.
RUN install --directory --mode 1777 /run/inflight \
    && install --directory /engine
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    python3 -m pip --python /opt/inflight/bin/python install --no-cache-dir --no-deps /wheels/*.whl
COPY --chmod=0755 docker/entrypoint.sh /usr/local/bin/inflight-entrypoint
COPY --chmod=0755 docker/health.py /usr/local/bin/inflight-health
ENV PATH=/opt/inflight/bin:$PATH \
    HOME=/run/inflight \
    INFLIGHT_RUN_DIR=/run/inflight \
    INFLIGHT_ENGINE=/engine \
    # What it compiles it loads, which a /tmp without exec forbids.
    TORCHINDUCTOR_CACHE_DIR=/run/inflight/torchinductor \
    PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080 8000 8001 8002
USER 1000:1000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=15s --start-period=15m --retries=3 CMD ["/usr/local/bin/inflight-health"]
# NVIDIA's own comes first, as in the base: it says whether the driver fits, and hands over with exec.
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh", "/usr/local/bin/inflight-entrypoint"]
