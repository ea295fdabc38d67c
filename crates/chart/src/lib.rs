//! Pictures of measurements, as SVG: what timelines, benchmarks, the book, and the slides draw with.

pub mod card;
pub mod lines;
