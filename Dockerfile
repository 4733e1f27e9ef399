# CollBench on a public image of PyTorch with CUDA and NCCL:  docker build -t collbench .
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD:/collbench/results" collbench collbench run nccl
ARG IMAGE=pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime
FROM ${IMAGE}
# The image's torch, and so its NCCL, stays: pip finds that it is new enough.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
COPY . /source
RUN pip install --no-cache-dir /source && rm -r /source
WORKDIR /collbench
CMD ["collbench", "doctor"]
