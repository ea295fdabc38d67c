//! Tests of the virtual GPU from outside, against the documentation of CUDA, PTX, and NCCL: `machine` runs PTX, and
//! `virtual_gpu` runs programs that use cudarc. The tests are a separate package so that they are built without the
//! virtual GPU's optimization.
