//! `modules/06_scale/src/main.rs`, built with the solutions.

extern crate s06_scale as m06_scale;

include!("../../../modules/06_scale/src/main.rs");
