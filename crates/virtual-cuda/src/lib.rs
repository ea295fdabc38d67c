//! virtual-cuda
