//! `modules/05_overlap/src/bin/interleave.rs`, built with the solutions.

extern crate s05_overlap as m05_overlap;

include!("../../../../modules/05_overlap/src/bin/interleave.rs");
