# CollBench on a public image of PyTorch with CUDA and NCCL, with Open MPI:  docker build -t collbench .
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 --user "$(id -u)" -v "$PWD:/collbench" collbench collbench run nccl
# A release builds on this image by its digest (.github/workflows/release.yaml).
ARG IMAGE=pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime
FROM ${IMAGE}
# The image's torch, and so its NCCL, stays. It needs setuptools, which may be a package of the image's system.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1
COPY . /source
RUN grep -v '^torch\|^setuptools' /source/requirements.txt > /tmp/locked.txt \
    && pip install -r /tmp/locked.txt -r /source/requirements-mpi.txt \
    && pip install --no-deps /source \
    && rm -r /source /tmp/locked.txt
# An ordinary user, or any that --user names: each may write into its home, and into /collbench if nothing is mounted there.
ENV HOME=/tmp
RUN useradd collbench && install -d -m 1777 /collbench
USER collbench
WORKDIR /collbench
CMD ["collbench", "doctor"]
