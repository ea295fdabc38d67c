//! `modules/02_collectives/src/main.rs`, built with the solutions.

extern crate s02_collectives as m02_collectives;

include!("../../../modules/02_collectives/src/main.rs");
