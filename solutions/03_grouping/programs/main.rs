//! `modules/03_grouping/src/main.rs`, built with the solutions.

extern crate s03_grouping as m03_grouping;

include!("../../../modules/03_grouping/src/main.rs");
