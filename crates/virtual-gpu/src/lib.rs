//! A software GPU.
//!
//! It answers three separate questions: *function* (which values result), *order* (what must happen before what), and
//! *time* (when things happen). This crate contains no C: `virtual-cuda` is the FFI layer.

pub mod config;
pub mod device;
pub mod engine;
pub mod occupancy;
pub mod order;
pub mod report;
pub mod time;
