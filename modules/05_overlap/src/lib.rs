//! Hide the communication behind the computation.

pub mod analysis;
pub mod copies;
pub mod graphs;
pub mod interleave;
pub mod layerwise;
pub mod pipeline_parallel;
