//! A GPU in software.
//!
//! Three questions, answered apart: *function* (which values result), *order* (what must happen before what) and
//! *time* (when it happens). No C is in here: `virtual-cuda` is the FFI layer.

pub mod config;
pub mod device;
pub mod engine;
pub mod occupancy;
pub mod order;
pub mod report;
pub mod time;
