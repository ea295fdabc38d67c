# What building the course needs, and nothing else: Rust, a linker, and git. The course itself is mounted at /course.
FROM debian:trixie-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates gcc git libc6-dev rustup \
    && rm -rf /var/lib/apt/lists/*

# A volume that is mounted at /course/target gets this folder's owner.
RUN useradd --create-home --shell /bin/bash student \
    && install --directory --owner student --group student /course /course/target

# Cargo makes rustup install the toolchain that the file names.
USER student
WORKDIR /home/student
COPY rust-toolchain.toml .
RUN cargo --version && rm rust-toolchain.toml

WORKDIR /course
CMD ["bash"]
