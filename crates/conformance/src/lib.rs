//! Tests of the virtual GPU from outside, against what CUDA, PTX and NCCL document: `machine` runs PTX, and `virtual_gpu` runs
//! cudarc's programs. They have a package of their own so that they are built without the virtual GPU's optimisation.
