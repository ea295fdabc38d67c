//! The list of exercises, and how far a student is.

pub mod progress;
pub mod syllabus;
