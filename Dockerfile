# The package in a slim Debian 12.
#
#   docker build -t trainctl .
#   docker run --rm -v "$PWD:/work" trainctl run job.yaml
FROM debian:12 AS build
COPY . /source
RUN cd /source && ./bootstrap package

FROM debian:12-slim
RUN --mount=type=bind,from=build,source=/source/build/packages,target=/packages \
    apt-get update && apt-get install -y --no-install-recommends /packages/*.deb && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home trainctl && install -d -o trainctl /work
USER trainctl
WORKDIR /work
ENTRYPOINT ["trainctl"]
CMD ["--help"]
