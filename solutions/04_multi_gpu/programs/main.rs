//! `modules/04_multi_gpu/src/main.rs` with the solutions in the place of the student's answers.

extern crate s04_multi_gpu as m04_multi_gpu;

include!("../../../modules/04_multi_gpu/src/main.rs");
