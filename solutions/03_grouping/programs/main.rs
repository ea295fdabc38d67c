//! `modules/03_grouping/src/main.rs` with the solutions in the place of the student's answers.

extern crate s03_grouping as m03_grouping;

include!("../../../modules/03_grouping/src/main.rs");
