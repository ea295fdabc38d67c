//! Overlap communication with compute.

pub mod analysis;
pub mod bucket_plan;
pub mod buckets;
pub mod copies;
pub mod depth;
pub mod graphs;
pub mod hooks;
pub mod interleave;
pub mod layerwise;
pub mod pipeline_parallel;
pub mod stages;
pub mod waiting;
