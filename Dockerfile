# Trains in a container, on a CPU or an NVIDIA GPU. See docs/deployment.md.
FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        ca-certificates g++ git libegl1 libgl1 libgl1-mesa-dri libglib2.0-0 make python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
# NVIDIA's container runtime provides EGL only if graphics are requested.
ENV NVIDIA_DRIVER_CAPABILITIES=all MUJOCO_GL=egl
# The index of torch's CUDA build, such as https://download.pytorch.org/whl/cu130. Without it the CPU build is
# installed, since no GPU is visible while the image is built.
ARG TORCH_INDEX=
WORKDIR /drqv2
COPY . .
RUN TORCH_INDEX="$TORCH_INDEX" make setup
ENTRYPOINT [".venv/bin/python", "train.py"]
