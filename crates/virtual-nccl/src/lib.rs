//! virtual-nccl
