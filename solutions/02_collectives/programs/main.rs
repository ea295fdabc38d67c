//! `modules/02_collectives/src/main.rs` with the solutions in the place of the student's answers.

extern crate s02_collectives as m02_collectives;

include!("../../../modules/02_collectives/src/main.rs");
