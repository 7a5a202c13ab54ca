# Training in a container, on a CPU or an NVIDIA GPU: see docs/deployment.md.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates git libegl1 libgl1 libgl1-mesa-dri libglib2.0-0 make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
# NVIDIA's container runtime provides EGL only if graphics capabilities are requested.
ENV NVIDIA_DRIVER_CAPABILITIES=all MUJOCO_GL=egl
# For a GPU, say https://download.pytorch.org/whl/cu130. The default is the CPU build, as no GPU is visible in a build.
ARG TORCH_INDEX=
WORKDIR /drqv2
COPY . .
RUN TORCH_INDEX="$TORCH_INDEX" make setup
ENTRYPOINT [".venv/bin/python", "train.py"]
