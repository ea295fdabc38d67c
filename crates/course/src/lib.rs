//! The list of exercises, a student's progress, and check results.

pub mod alternatives;
pub mod answer_patch;
pub mod answers;
pub mod checks;
pub mod handout;
pub mod mistakes;
pub mod module_sources;
pub mod progress;
pub mod replace;
pub mod results;
pub mod scores;
pub mod starter;
pub mod syllabus;
