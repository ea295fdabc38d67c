//! Draws pictures of measurements as SVG, for timelines, benchmarks, the book, and the slides.

pub mod card;
pub mod lines;
