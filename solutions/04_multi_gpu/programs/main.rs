//! `modules/04_multi_gpu/src/main.rs`, built with the solutions.

extern crate s04_multi_gpu as m04_multi_gpu;

include!("../../../modules/04_multi_gpu/src/main.rs");
