# inflight with the embedded engine (OpenVINO) on a Triton from the wheel nvidia-pytriton, for x86-64 without a GPU.
# Build at the repository's root: docker build --file docker/cpu.Dockerfile --tag inflight-cpu:0.1.0 .
FROM python:3.11-slim-bookworm AS wheel
WORKDIR /source
COPY requirements.lock ./
RUN pip install --no-cache-dir --constraint requirements.lock hatchling
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

# What we need of others, which changes less often than what is ours: a layer of its own, made without our sources.
FROM python:3.11-slim-bookworm AS packages
ARG EXTRAS=serve,s3
WORKDIR /packages
COPY pyproject.toml requirements.lock docker/image_requirements.py ./
RUN python image_requirements.py --extras "$EXTRAS" > wanted.txt \
    && python -m venv --without-pip /opt/inflight \
    && pip --python /opt/inflight/bin/python install --no-cache-dir --requirement wanted.txt --constraint requirements.lock
# Of OpenVINO its compiler for GPUs and NPUs and its readers of other formats, of Triton what runs other Pythons.
WORKDIR /opt/inflight/lib/python3.11/site-packages
RUN rm -r openvino/include openvino/libs/cache.json \
        openvino/libs/libopenvino_intel_gpu_plugin.so openvino/libs/libopenvino_intel_npu_plugin.so \
        openvino/libs/libopenvino_onnx_frontend.so.* openvino/libs/libopenvino_paddle_frontend.so.* \
        openvino/libs/libopenvino_pytorch_frontend.so.* openvino/libs/libopenvino_tensorflow_frontend.so.* \
        nvidia_pytriton.libs/libpython3-*.so.* \
    && find pytriton/tritonserver/python_backend_stubs -mindepth 1 -maxdepth 1 ! -name 3.11 -exec rm -r {} +

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="inflight-cpu" \
      org.opencontainers.image.description="LLMs on NVIDIA Triton with in-flight batching, on the processor" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="python:3.11-slim-bookworm"
# Any other user works too: what is written is written to /run/inflight and /tmp.
RUN groupadd --gid 1000 inflight \
    && useradd --uid 1000 --gid 1000 --no-create-home --home-dir /run/inflight --shell /usr/sbin/nologin inflight \
    && install --directory --mode 1777 /run/inflight \
    && install --directory /engine
COPY --from=packages /opt/inflight /opt/inflight
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip --python /opt/inflight/bin/python install --no-cache-dir --no-deps /wheels/*.whl
COPY --chmod=0755 docker/entrypoint.sh /usr/local/bin/inflight-entrypoint
COPY --chmod=0755 docker/health.py /usr/local/bin/inflight-health
ENV PATH=/opt/inflight/bin:$PATH \
    HOME=/run/inflight \
    INFLIGHT_RUN_DIR=/run/inflight \
    INFLIGHT_ENGINE=/engine \
    PYTHONDONTWRITEBYTECODE=1
EXPOSE 8080 8000 8001 8002
USER 1000:1000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=15s --start-period=15m --retries=3 CMD ["/usr/local/bin/inflight-health"]
ENTRYPOINT ["/usr/local/bin/inflight-entrypoint"]
