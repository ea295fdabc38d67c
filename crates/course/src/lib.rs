//! The list of exercises, how far a student is, and what the checks say.

pub mod answers;
pub mod checks;
pub mod mistakes;
pub mod progress;
pub mod replace;
pub mod starter;
pub mod syllabus;
