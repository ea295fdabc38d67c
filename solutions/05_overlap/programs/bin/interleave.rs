//! `modules/05_overlap/src/bin/interleave.rs` with the solutions in the place of the student's answers.

extern crate s05_overlap as m05_overlap;

include!("../../../../modules/05_overlap/src/bin/interleave.rs");
