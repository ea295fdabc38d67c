//! `modules/01_init/src/bin/process.rs` with the solutions in the place of the student's answers.

extern crate s01_init as m01_init;

include!("../../../../modules/01_init/src/bin/process.rs");
