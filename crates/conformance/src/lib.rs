//! Tests the virtual GPU from the outside, against the CUDA, PTX, and NCCL documentation: `machine` runs PTX, and
//! `virtual_gpu` runs programs that use cudarc. The tests are a separate package so that Cargo does not optimize them
//! as it does the virtual GPU.
