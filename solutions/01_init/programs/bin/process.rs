//! `modules/01_init/src/bin/process.rs`, built with the solutions.

extern crate s01_init as m01_init;

include!("../../../../modules/01_init/src/bin/process.rs");
